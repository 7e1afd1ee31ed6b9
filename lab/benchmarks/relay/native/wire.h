/* What the upstream and the load client share: the clock, growing buffers and chunked bodies. */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MICROSECOND 1000ull
#define MILLISECOND 1000000ull
#define SECOND 1000000000ull

/* Both ends run on one machine, so this clock also tells how long a chunk was on its way. */
static inline uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

struct buffer {
    char *bytes;
    size_t used, room;
};

static inline void append(struct buffer *buffer, const char *bytes, size_t n) {
    if (buffer->used + n + 1 > buffer->room) {
        buffer->room = (buffer->used + n + 1) * 2;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) die("realloc");
    }
    memcpy(buffer->bytes + buffer->used, bytes, n);
    buffer->used += n;
    buffer->bytes[buffer->used] = 0; /* a header is searched as a string */
}

struct chunked {
    enum { SIZE, CONTENT, AFTER_CONTENT, TRAILER, END } at;
    uint64_t left;
    int in_extension;
    int line; /* bytes in the trailer's current line */
};

static inline int hex_digit(char x) {
    if (x >= '0' && x <= '9') return x - '0';
    if (x >= 'a' && x <= 'f') return x - 'a' + 10;
    if (x >= 'A' && x <= 'F') return x - 'A' + 10;
    return -1;
}

/* Reads on until there is a piece of content, or no byte left. Returns how many bytes were read. */
static inline size_t next_piece(struct chunked *c, const char *b, size_t n, const char **piece, size_t *length) {
    size_t i = 0;
    *length = 0;
    while (i < n && c->at != END) {
        if (c->at == CONTENT) {
            *piece = b + i;
            *length = n - i < c->left ? n - i : c->left;
            c->left -= *length;
            if (!c->left) c->at = AFTER_CONTENT;
            return i + *length;
        }
        char x = b[i++];
        if (c->at == SIZE) {
            if (x == '\n') {
                c->at = c->left ? CONTENT : TRAILER;
                c->in_extension = c->line = 0;
            } else if (x == ';') {
                c->in_extension = 1;
            } else if (!c->in_extension && hex_digit(x) >= 0) {
                c->left = c->left * 16 + (uint64_t)hex_digit(x);
            }
        } else if (c->at == AFTER_CONTENT) {
            if (x == '\n') c->at = SIZE; /* `left` is 0 by now */
        } else if (x == '\n') { /* an empty line ends the trailer */
            if (!c->line) c->at = END;
            c->line = 0;
        } else if (x != '\r') {
            c->line++;
        }
    }
    return i;
}

#endif
