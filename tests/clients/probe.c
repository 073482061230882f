// Asks the system for what a guest has not, or has by a grant.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define IMPORT(name) __attribute__((import_module("extism:host/env"), import_name(#name)))
IMPORT(alloc) extern uint64_t alloc(uint64_t length);
IMPORT(store_u8) extern void store_u8(uint64_t at, uint32_t byte);
IMPORT(output_set) extern void output_set(uint64_t at, uint64_t length);

#define EXPORT(name) __attribute__((export_name(#name))) int32_t name(void)

static void answer(const char *text) {
    uint64_t length = strlen(text), at = alloc(length);
    for (uint64_t i = 0; i < length; i++) store_u8(at + i, (uint8_t)text[i]);
    output_set(at, length);
}

EXPORT(describe) {
    answer("{\"description\":\"Looks around.\",\"input_schema\":{\"type\":\"object\"}}");
    return 0;
}

EXPORT(handle_tool_call) {
    char found[256];
    struct timespec now;
    unsigned char random[8];
    usleep(1000);
    snprintf(found, sizeof found, "%s file, %s folder, %s variable, %s input, %sclock, %sentropy",
             fopen("/etc/passwd", "r") ? "a" : "no", mkdir("/tmp/x", 0700) ? "no" : "a", getenv("HOME") ? "a" : "no",
             getchar() == EOF ? "no" : "some", clock_gettime(CLOCK_REALTIME, &now) ? "no " : "",
             getentropy(random, sizeof random) ? "no " : "");
    answer(found);
    return 0;
}
