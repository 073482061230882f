// A tool written in JavaScript, with the engine that runs it: QuickJS, as the JavaScript kit of Extism has it.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quickjs.h"

#define HOST(name) __attribute__((import_module("extism:host/env"), import_name(name)))
HOST("alloc") uint64_t host_alloc(uint64_t length);
HOST("store_u8") void host_store(uint64_t address, uint8_t byte);
HOST("input_length") uint64_t host_input_length(void);
HOST("input_load_u8") uint8_t host_input(uint64_t at);
HOST("output_set") void host_output(uint64_t address, uint64_t length);
HOST("error_set") void host_error(uint64_t address);

#define EXPORT(name) __attribute__((export_name(name)))

static const char script[] =
    "const describe = () => JSON.stringify({ description: 'Evaluates an expression.' });\n"
    "function handle_tool_call(input) {\n"
    "    print('evaluating', input);\n"
    "    return JSON.stringify({ content: String((0, eval)(JSON.parse(input).code)) });\n"
    "}\n";

static JSValue print(JSContext *context, JSValueConst self, int count, JSValueConst *values) {
    for (int at = 0; at < count; at++) {
        const char *text = JS_ToCString(context, values[at]);
        printf("%s%s", at ? " " : "", text);
        JS_FreeCString(context, text);
    }
    printf("\n");
    return JS_UNDEFINED;
}

static int run(const char *code) {
    JSContext *context = JS_NewContext(JS_NewRuntime());
    JSValue global = JS_GetGlobalObject(context);
    JS_SetPropertyStr(context, global, "print", JS_NewCFunction(context, print, "print", 1));
    size_t length = host_input_length();
    char *input = calloc(length + 1, 1);
    for (size_t at = 0; at < length; at++) input[at] = host_input(at);
    JS_SetPropertyStr(context, global, "input", JS_NewStringLen(context, input, length));
    JSValue value = JS_Eval(context, script, strlen(script), "script.js", JS_EVAL_TYPE_GLOBAL);
    if (!JS_IsException(value)) value = JS_Eval(context, code, strlen(code), "call.js", JS_EVAL_TYPE_GLOBAL);
    int failed = JS_IsException(value);
    if (failed) value = JS_GetException(context);
    const char *text = JS_ToCString(context, value);
    size_t bytes = strlen(text);
    uint64_t address = host_alloc(bytes);
    for (size_t at = 0; at < bytes; at++) host_store(address + at, text[at]);
    if (failed) host_error(address);
    else host_output(address, bytes);
    return failed;
}

EXPORT("describe") int describe(void) { return run("describe()"); }

EXPORT("handle_tool_call") int handle_tool_call(void) { return run("handle_tool_call(input)"); }
