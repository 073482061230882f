// A tool in C: counts the words of a text. The page in README.md says how to build it.
//
// A guest has its input, and what it answers with, in memory of the host, which it reads and writes a byte at a time.
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define IMPORT(name) __attribute__((import_module("extism:host/env"), import_name(#name)))
IMPORT(input_length) extern uint64_t input_length(void);
IMPORT(input_load_u8) extern uint32_t input_load_u8(uint64_t at);
IMPORT(alloc) extern uint64_t alloc(uint64_t length);
IMPORT(store_u8) extern void store_u8(uint64_t at, uint32_t byte);
IMPORT(output_set) extern void output_set(uint64_t at, uint64_t length);

#define EXPORT(name) __attribute__((export_name(#name))) int32_t name(void)

static char input[64 * 1024];

static void answer(const char *json) {
    uint64_t length = strlen(json), at = alloc(length);
    for (uint64_t i = 0; i < length; i++) store_u8(at + i, (uint8_t)json[i]);
    output_set(at, length);
}

EXPORT(describe) {
    answer("{\"description\":\"Counts the words of a text.\",\"input_schema\":{\"type\":\"object\","
           "\"properties\":{\"text\":{\"type\":\"string\"}},\"required\":[\"text\"]}}");
    return 0;
}

EXPORT(handle_tool_call) {
    uint64_t length = input_length();
    if (length >= sizeof input) {
        answer("{\"content\":\"the text is too long\",\"is_error\":true}");
        return 0;
    }
    for (uint64_t i = 0; i < length; i++) input[i] = (char)input_load_u8(i);

    // The input fits the schema above. A real tool would use a JSON library here.
    const char *text = strstr(input, "\"text\":");
    text = text ? strchr(text + 7, '"') : NULL;
    int words = 0;
    for (int inside = 0; text && *++text && *text != '"';) {
        int is_word = !isspace((unsigned char)*text);
        words += is_word && !inside;
        inside = is_word;
    }

    printf("counted %d words\n", words); // to the log of the daemon
    char json[64];
    snprintf(json, sizeof json, "{\"content\":\"%d words\"}", words);
    answer(json);
    return 0;
}
