/* A provider that answers at once and costs next to nothing: one thread, epoll.

       upstream PORT

   What it answers is chosen by the model's name, so that a proxy need not pass anything else on:

       bench-chunks8-pause0-wait0-text200

   chunks: content chunks of a stream; pause: milliseconds between them; wait: milliseconds before the first byte;
   text: bytes of a plain answer's text. Each may be absent. A content chunk holds "#T#", T being the monotonic clock
   in nanoseconds when it was sent, and so does the end of a plain text. Every event of a stream is a write of its own,
   as a provider's tokens come one by one.

   GET /stats tells what has arrived; any other GET is answered with a list of models. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire.h"

#define EDGE 4096
#define UNSENT_AT_MOST (256 * 1024)

struct script {
    int chunks, pause, wait, text;
};
static const struct script DEFAULT = {8, 0, 0, 200};

struct connection {
    int fd, watches_writing, closes;
    unsigned life; /* a timer of an earlier life is void: connections are used again */
    enum { HEADER, BODY, CHUNKED_BODY, ANSWERING } at;
    enum { CHAT, STATS, MODELS } path;
    struct buffer unread; /* of a header, or what came while an answer was on its way */
    struct buffer unsent;
    struct chunked chunked;
    uint64_t body_left, body_bytes;
    /* The first and the last bytes of the body: the members beside the messages stand there, whoever wrote it. */
    char edges[3 * EDGE];
    size_t edges_used;
    char model[96];
    struct script script;
    int streaming, sent_chunks;
    uint64_t due;
    struct connection *next_free;
};

struct timer {
    uint64_t due;
    struct connection *connection;
    unsigned life;
};

static int poller;
static struct connection *free_connections;
static struct {
    struct timer *heap;
    int used, room;
} timers;
static unsigned long long requests, open_streams, chunks_sent;

static void feed(struct connection *c, const char *b, size_t n);

/* --- timers: a binary heap ------------------------------------------------------------------------------------- */

static void wake_at(uint64_t due, struct connection *c) {
    if (timers.used == timers.room) {
        timers.room = timers.room ? timers.room * 2 : 1024;
        timers.heap = realloc(timers.heap, (size_t)timers.room * sizeof *timers.heap);
        if (!timers.heap) die("realloc");
    }
    int i = timers.used++;
    for (; i && timers.heap[(i - 1) / 2].due > due; i = (i - 1) / 2) timers.heap[i] = timers.heap[(i - 1) / 2];
    timers.heap[i] = (struct timer){due, c, c->life};
}

static struct timer next_timer(void) {
    struct timer first = timers.heap[0], last = timers.heap[--timers.used];
    int i = 0;
    for (int child; (child = 2 * i + 1) < timers.used; i = child) {
        if (child + 1 < timers.used && timers.heap[child + 1].due < timers.heap[child].due) child++;
        if (timers.heap[child].due >= last.due) break;
        timers.heap[i] = timers.heap[child];
    }
    timers.heap[i] = last;
    return first;
}

/* --- writing --------------------------------------------------------------------------------------------------- */

static void forget(struct connection *c) {
    if (c->fd < 0) return;
    close(c->fd);
    if (c->streaming) open_streams--;
    c->fd = -1;
    c->life++;
    c->streaming = 0;
    c->unread.used = c->unsent.used = 0;
    c->next_free = free_connections;
    free_connections = c;
}

static void watch(struct connection *c, int writing) {
    if (c->watches_writing == writing) return;
    c->watches_writing = writing;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

/* False where the connection is gone. What does not fit into the socket is kept and sent when it does. */
static int put(struct connection *c, const char *bytes, size_t n) {
    if (!c->unsent.used) {
        ssize_t sent = send(c->fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            forget(c);
            return 0;
        }
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        }
    }
    if (n) {
        append(&c->unsent, bytes, n);
        watch(c, 1);
    }
    return 1;
}

static int put_unsent(struct connection *c) {
    ssize_t sent = send(c->fd, c->unsent.bytes, c->unsent.used, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EAGAIN) return 1;
        forget(c);
        return 0;
    }
    c->unsent.used -= (size_t)sent;
    memmove(c->unsent.bytes, c->unsent.bytes + sent, c->unsent.used);
    if (!c->unsent.used) watch(c, 0);
    return 1;
}

/* --- answering ------------------------------------------------------------------------------------------------- */

static void finish(struct connection *c) {
    if (c->closes && !c->unsent.used) {
        forget(c);
        return;
    }
    c->at = HEADER;
    if (c->unread.used) {
        struct buffer early = c->unread;
        c->unread = (struct buffer){0};
        feed(c, early.bytes, early.used);
        free(early.bytes);
    }
}

/* One event of the stream, framed as a chunk. */
__attribute__((format(printf, 2, 3))) static int put_event(struct connection *c, const char *format, ...) {
    char json[1024], framed[1100];
    va_list values;
    va_start(values, format);
    int n = vsnprintf(json, sizeof json, format, values);
    va_end(values);
    n = snprintf(framed, sizeof framed, "%x\r\ndata: %s\n\n\r\n", n + 8, json);
    return put(c, framed, (size_t)n);
}

#define CHUNK                                                                                                         \
    "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1730000000,\"model\":\"%s\","          \
    "\"system_fingerprint\":\"fp_bench\",\"choices\":"

static int put_last_events(struct connection *c) {
    unsigned long long prompt = c->body_bytes / 4;
    return put_event(c, CHUNK "[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}", c->model) &&
           put_event(c,
                     CHUNK "[],\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%d,\"total_tokens\":%llu}}",
                     c->model, prompt, c->script.chunks, prompt + (unsigned long long)c->script.chunks) &&
           put_event(c, "[DONE]") && put(c, "0\r\n\r\n", 5);
}

/* Sends what is due of a stream, and sees to being called again. */
static void go_on(struct connection *c, uint64_t now) {
    while (c->due <= now) {
        if (c->sent_chunks == c->script.chunks) {
            if (!put_last_events(c)) return;
            c->streaming = 0;
            open_streams--;
            finish(c);
            return;
        }
        if (!c->sent_chunks &&
            !put_event(c, CHUNK "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                "\"finish_reason\":null}]}", c->model))
            return;
        if (!put_event(c, CHUNK "[{\"index\":0,\"delta\":{\"content\":\"#%llu#\"},\"finish_reason\":null}]}", c->model,
                       (unsigned long long)now_ns()))
            return;
        c->sent_chunks++;
        chunks_sent++;
        c->due += (uint64_t)c->script.pause * MILLISECOND;
        if (c->unsent.used > UNSENT_AT_MOST) c->due = now + 200 * MICROSECOND;
    }
    wake_at(c->due, c);
}

static void begin_stream(struct connection *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                               "cache-control: no-cache\r\nx-request-id: req_bench\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    if (!put(c, head, sizeof head - 1)) return;
    c->streaming = 1;
    open_streams++;
    c->sent_chunks = 0;
    c->due = now_ns();
    go_on(c, c->due);
}

static void answer_with(struct connection *c, const char *status, const char *body, size_t length) {
    char head[256];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\ncontent-type: application/json\r\nx-request-id: req_bench\r\n"
                     "content-length: %zu\r\n\r\n", status, length);
    struct buffer whole = {0};
    append(&whole, head, (size_t)n);
    append(&whole, body, length);
    int there = put(c, whole.bytes, whole.used);
    free(whole.bytes);
    if (there) finish(c);
}

static void answer_plainly(struct connection *c) {
    static const char sentence[] = "The tool's result was read line by line, and it says what the test expects of it. ";
    unsigned long long prompt = c->body_bytes / 4, completion = (unsigned long long)c->script.text / 4;
    size_t room = (size_t)c->script.text + 1024;
    char *body = malloc(room), *text = malloc((size_t)c->script.text + 1);
    if (!body || !text) die("malloc");
    for (int i = 0; i < c->script.text; i++) text[i] = sentence[(size_t)i % (sizeof sentence - 1)];
    text[c->script.text] = 0;
    int n = snprintf(body, room,
                     "{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion\",\"created\":1730000000,\"model\":\"%s\","
                     "\"system_fingerprint\":\"fp_bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                     "\"content\":\"%s#%llu#\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                     "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":0}}}",
                     c->model, text, (unsigned long long)now_ns(), prompt, completion, prompt + completion);
    answer_with(c, "200 OK", body, (size_t)n);
    free(body);
    free(text);
}

static int is_stream(struct connection *c) {
    static const char name[] = "\"stream\"";
    char *end = c->edges + c->edges_used, *at = c->edges;
    /* In a text the quotes are escaped, so this is a member's name. */
    while ((at = memmem(at, (size_t)(end - at), name, sizeof name - 1))) {
        at += sizeof name - 1;
        while (at < end && (*at == ' ' || *at == ':')) at++;
        if (end - at >= 4 && !memcmp(at, "true", 4)) return 1;
    }
    return 0;
}

static int read_model(struct connection *c) {
    char *end = c->edges + c->edges_used;
    char *at = memmem(c->edges, c->edges_used, "\"bench-", 7);
    size_t n = 0;
    if (!at) return 0;
    for (at++; at < end && *at != '"' && n < sizeof c->model - 1; at++) c->model[n++] = *at;
    c->model[n] = 0;
    const struct {
        const char *name;
        int *value;
    } parts[] = {{"-chunks", &c->script.chunks},
                 {"-pause", &c->script.pause},
                 {"-wait", &c->script.wait},
                 {"-text", &c->script.text}};
    c->script = DEFAULT;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *found = strstr(c->model, parts[i].name);
        if (found) *parts[i].value = atoi(found + strlen(parts[i].name));
    }
    return 1;
}

static void answer_chat(struct connection *c) {
    if (is_stream(c))
        begin_stream(c);
    else
        answer_plainly(c);
}

static void answer(struct connection *c) {
    char body[256];
    c->at = ANSWERING;
    if (c->path == STATS) {
        int n = snprintf(body, sizeof body, "{\"requests\":%llu,\"open_streams\":%llu,\"chunks\":%llu}", requests,
                         open_streams, chunks_sent);
        answer_with(c, "200 OK", body, (size_t)n);
    } else if (c->path == MODELS) {
        static const char models[] = "{\"object\":\"list\",\"data\":[{\"id\":\"bench-chunks8\",\"object\":\"model\","
                                     "\"created\":1730000000,\"owned_by\":\"bench\"}]}";
        answer_with(c, "200 OK", models, sizeof models - 1);
    } else if (!read_model(c)) {
        static const char error[] = "{\"error\":{\"message\":\"The model's name has to begin with bench-.\","
                                    "\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":null}}";
        answer_with(c, "400 Bad Request", error, sizeof error - 1);
    } else {
        requests++;
        if (c->script.wait)
            wake_at(now_ns() + (uint64_t)c->script.wait * MILLISECOND, c);
        else
            answer_chat(c);
    }
}

/* --- reading --------------------------------------------------------------------------------------------------- */

static void keep_edges(struct connection *c, const char *b, size_t n) {
    c->body_bytes += n;
    if (c->edges_used + n > sizeof c->edges) { /* keep the first EDGE bytes, and of all after them the last EDGE */
        size_t first = EDGE > c->edges_used ? EDGE - c->edges_used : 0;
        memcpy(c->edges + c->edges_used, b, first);
        c->edges_used += first;
        b += first;
        n -= first;
        size_t old = n < EDGE ? EDGE - n : 0;
        if (old > c->edges_used - EDGE) old = c->edges_used - EDGE;
        memmove(c->edges + EDGE, c->edges + c->edges_used - old, old);
        c->edges_used = EDGE + old;
        if (n > EDGE) {
            b += n - EDGE;
            n = EDGE;
        }
    }
    memcpy(c->edges + c->edges_used, b, n);
    c->edges_used += n;
}

static void read_header(struct connection *c, char *header) {
    char *protocol = strstr(header, " HTTP/1.");
    c->closes = !protocol || protocol[8] == '0';
    c->path = strncmp(header, "GET ", 4) ? CHAT : strncmp(header, "GET /stats ", 11) ? MODELS : STATS;
    c->at = BODY;
    c->body_left = c->body_bytes = c->edges_used = 0;
    for (char *line = strstr(header, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, "content-length:", 15)) {
            c->body_left = strtoull(line + 15, NULL, 10);
        } else if (!strncasecmp(line, "transfer-encoding:", 18)) {
            c->at = CHUNKED_BODY;
            c->chunked = (struct chunked){0};
        } else if (!strncasecmp(line, "connection: close", 17)) {
            c->closes = 1;
        } else if (!strncasecmp(line, "expect:", 7)) {
            put(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        }
    }
}

/* Takes bytes of the body, returns how many. */
static size_t feed_body(struct connection *c, const char *b, size_t n) {
    if (c->at == BODY) {
        size_t taken = n < c->body_left ? n : c->body_left;
        keep_edges(c, b, taken);
        c->body_left -= taken;
        if (!c->body_left) answer(c);
        return taken;
    }
    const char *piece = b;
    size_t taken = 0, length;
    while (taken < n && c->chunked.at != END) {
        taken += next_piece(&c->chunked, b + taken, n - taken, &piece, &length);
        keep_edges(c, piece, length);
    }
    if (c->chunked.at == END) answer(c);
    return taken;
}

static void feed(struct connection *c, const char *b, size_t n) {
    unsigned life = c->life;
    size_t i = 0;
    while (i < n && c->life == life) {
        if (c->at == BODY || c->at == CHUNKED_BODY) {
            i += feed_body(c, b + i, n - i);
            continue;
        }
        append(&c->unread, b + i, n - i);
        if (c->at == ANSWERING) return;
        char *end = strstr(c->unread.bytes, "\r\n\r\n");
        if (!end) return;
        /* Of the bytes in `b` those of the header are read now; what was kept before belongs to it as a whole. */
        size_t header = (size_t)(end - c->unread.bytes) + 4;
        i = n - (c->unread.used - header);
        *end = 0;
        c->unread.used = 0;
        read_header(c, c->unread.bytes);
        if (c->at == BODY && !c->body_left) answer(c);
    }
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct connection *c = free_connections;
        if (c)
            free_connections = c->next_free;
        else if (!(c = calloc(1, sizeof *c)))
            die("calloc");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        c->at = HEADER;
        c->watches_writing = 0;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static void serve(struct connection *c, uint32_t events) {
    static char received[256 * 1024];
    if (events & EPOLLOUT) {
        if (!put_unsent(c)) return;
        if (c->closes && c->at == HEADER && !c->unsent.used) {
            forget(c);
            return;
        }
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t n = recv(c->fd, received, sizeof received, 0);
        if (n > 0)
            feed(c, received, (size_t)n);
        else if (n == 0 || errno != EAGAIN)
            forget(c);
    }
}

static int listen_on(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) die("listen");
    return listener;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s PORT\n", arguments[0]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    int listener = listen_on(atoi(arguments[1]));
    struct epoll_event ready[512], listening = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        int wait = -1;
        uint64_t now = now_ns();
        if (timers.used)
            wait = timers.heap[0].due <= now ? 0 : (int)((timers.heap[0].due - now + MILLISECOND - 1) / MILLISECOND);
        int n = epoll_wait(poller, ready, 512, wait);
        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            if (!c)
                accept_all(listener);
            else if (c->fd >= 0)
                serve(c, ready[i].events);
        }
        now = now_ns();
        while (timers.used && timers.heap[0].due <= now) {
            struct timer timer = next_timer();
            struct connection *c = timer.connection;
            if (c->life != timer.life) continue;
            if (c->streaming)
                go_on(c, now);
            else
                answer_chat(c);
        }
    }
}
