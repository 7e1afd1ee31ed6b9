/* Asks for chat completions over some connections and checks every answer: one thread, epoll.

       load --port P --body FILE [options]

   Says what came of it in one line of JSON; times are microseconds. What stands between two "@turn@" in the body is a
   turn, and "@number@" in it becomes a number of its own in each request. With --turns N a connection's conversation
   grows by a turn with each request, up to N, and then begins again: what came before is history, and the end is new. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "wire.h"

#define TURN "@turn@"
#define NUMBER "@number@"
#define DIGITS (sizeof NUMBER - 1)
#define PATIENCE (60 * SECOND) /* without any answer */

static struct {
    int port, connections, warm, ramp_ms, stream, stamps, turns;
    long long requests;
    double seconds, rate;
    const char *path, *body;
    struct buffer headers;
} options = {.connections = 1, .stamps = 1, .turns = 1, .path = "/v1/chat/completions"};

struct connection {
    int fd, watches_writing;
    enum { IDLE, HEADER, CONTENT_BY_LENGTH, CONTENT_IN_CHUNKS, CONTENT_TO_END } at;
    uint64_t may_begin, began;
    struct buffer turns; /* so far */
    int told;            /* turns */
    char length[32];     /* of the body, and the end of the header */
    size_t sent;
    char header[16384];
    size_t header_used;
    int status, closes;
    uint64_t left;
    struct chunked chunked;
    int stamps, in_stamp;
    uint64_t stamp;
    char tail[32]; /* of the content: where a whole stream says [DONE] */
    char beginning[160]; /* of the content: what a refusal says */
    size_t tail_used, beginning_used;
};

struct times {
    float *values;
    size_t used, room;
};

static struct times latencies, firsts, delays;
static int poller;
static struct sockaddr_in address;
static struct buffer head;          /* of a request, up to the body's length */
static struct buffer before, after; /* of a body: what stands before and after its turns */
static struct buffer turn[2];       /* what stands before and after a turn's number */
static int measuring, in_flight;
static unsigned long long asked, answered, errors, chunks;
static uint64_t last_answer;
static char first_error[256];

static void note(struct times *times, uint64_t nanoseconds) {
    if (!measuring) return;
    if (times->used == times->room) {
        times->room = times->room ? times->room * 2 : 4096;
        times->values = realloc(times->values, times->room * sizeof *times->values);
        if (!times->values) die("realloc");
    }
    times->values[times->used++] = (float)nanoseconds / MICROSECOND;
}

/* --- asking ---------------------------------------------------------------------------------------------------- */

static void watch(struct connection *c, int writing) {
    if (c->watches_writing == writing) return;
    c->watches_writing = writing;
    struct epoll_event event = {.events = EPOLLIN | (writing ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void hang_up(struct connection *c) {
    close(c->fd);
    c->fd = -1;
}

/* The answer is there, or will not come: `wrong` says why. */
static void end(struct connection *c, uint64_t now, const char *wrong) {
    in_flight--;
    c->at = IDLE;
    if (wrong) {
        if (!*first_error)
            snprintf(first_error, sizeof first_error, "%s (status %d, %d stamps): %.*s", wrong, c->status, c->stamps,
                     (int)c->beginning_used, c->beginning);
        if (measuring) errors++;
        if (c->fd >= 0) hang_up(c);
        c->may_begin = now + 10 * MILLISECOND; /* whoever refuses at once is not asked at full speed */
        return;
    }
    if (measuring) answered++;
    last_answer = now;
    note(&latencies, now - c->began);
}

static void send_rest(struct connection *c) {
    const struct {
        char *bytes;
        size_t used;
    } parts[] = {{head.bytes, head.used},
                 {c->length, strlen(c->length)},
                 {before.bytes, before.used},
                 {c->turns.bytes, c->turns.used},
                 {after.bytes, after.used}};
    enum { PARTS = sizeof parts / sizeof *parts };
    size_t whole = 0;
    for (int i = 0; i < PARTS; i++) whole += parts[i].used;
    while (c->sent < whole) {
        struct iovec vector[PARTS];
        struct msghdr message = {.msg_iov = vector};
        size_t skip = c->sent;
        for (int i = 0; i < PARTS; i++) {
            size_t skipped = skip < parts[i].used ? skip : parts[i].used;
            skip -= skipped;
            if (skipped < parts[i].used)
                vector[message.msg_iovlen++] =
                    (struct iovec){.iov_base = parts[i].bytes + skipped, .iov_len = parts[i].used - skipped};
        }
        ssize_t n = sendmsg(c->fd, &message, MSG_NOSIGNAL);
        if (n < 0) {
            watch(c, errno == EAGAIN); /* any other trouble is seen when reading */
            return;
        }
        c->sent += (size_t)n;
    }
    watch(c, 0);
}

static int dial(struct connection *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) return 0;
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->watches_writing = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
    return 1;
}

static void tell_turn(struct connection *c) {
    char number[DIGITS + 1];
    snprintf(number, sizeof number, "%0*llu", (int)DIGITS, asked % 100000000);
    if (c->told++ == options.turns) {
        c->told = 1;
        c->turns.used = 0;
    }
    append(&c->turns, turn[0].bytes, turn[0].used);
    append(&c->turns, number, DIGITS);
    append(&c->turns, turn[1].bytes, turn[1].used);
}

/* `due`: when it should have begun. What a request waits for a free connection is part of its time. */
static void ask(struct connection *c, uint64_t due) {
    in_flight++;
    c->began = due;
    c->status = c->stamps = c->in_stamp = c->closes = 0;
    c->sent = c->header_used = c->tail_used = c->beginning_used = 0;
    c->at = HEADER;
    if (turn[0].used) tell_turn(c);
    asked++;
    snprintf(c->length, sizeof c->length, "%zu\r\n\r\n", before.used + c->turns.used + after.used);
    if (c->fd < 0 && !dial(c)) {
        end(c, due, strerror(errno));
        return;
    }
    send_rest(c);
}

/* --- reading --------------------------------------------------------------------------------------------------- */

static void read_stamps(struct connection *c, const char *b, size_t n, uint64_t now) {
    const char *at = b, *stop = b + n;
    while (at < stop) {
        if (!c->in_stamp) {
            at = memchr(at, '#', (size_t)(stop - at));
            if (!at) return;
            c->in_stamp = 1;
            c->stamp = 0;
            at++;
        } else if (*at >= '0' && *at <= '9') {
            c->stamp = c->stamp * 10 + (uint64_t)(*at++ - '0');
        } else {
            c->in_stamp = 0;
            if (*at++ != '#' || !c->stamp) continue;
            if (!c->stamps++ && options.stream) note(&firsts, now - c->began);
            if (options.stream) note(&delays, now - c->stamp);
            chunks += (unsigned)measuring;
        }
    }
}

static void read_content(struct connection *c, const char *b, size_t n, uint64_t now) {
    size_t kept = n < sizeof c->beginning - c->beginning_used ? n : sizeof c->beginning - c->beginning_used;
    memcpy(c->beginning + c->beginning_used, b, kept);
    c->beginning_used += kept;
    if (n >= sizeof c->tail) {
        memcpy(c->tail, b + n - sizeof c->tail, sizeof c->tail);
        c->tail_used = sizeof c->tail;
    } else {
        size_t over = c->tail_used + n > sizeof c->tail ? c->tail_used + n - sizeof c->tail : 0;
        memmove(c->tail, c->tail + over, c->tail_used - over);
        c->tail_used -= over;
        memcpy(c->tail + c->tail_used, b, n);
        c->tail_used += n;
    }
    read_stamps(c, b, n, now);
}

static void judge(struct connection *c, uint64_t now) {
    const char *wrong = NULL;
    if (c->status != 200)
        wrong = "refused";
    else if (c->stamps != options.stamps)
        wrong = "not whole";
    else if (options.stream && !memmem(c->tail, c->tail_used, "[DONE]", 6))
        wrong = "no [DONE]";
    end(c, now, wrong);
    if (c->closes && c->fd >= 0) hang_up(c);
}

/* Returns how many bytes belonged to the header. */
static size_t read_header(struct connection *c, const char *b, size_t n, uint64_t now) {
    size_t had = c->header_used;
    size_t taken = n < sizeof c->header - 1 - had ? n : sizeof c->header - 1 - had;
    memcpy(c->header + had, b, taken);
    c->header[c->header_used += taken] = 0;
    char *stop = strstr(c->header, "\r\n\r\n");
    if (!stop) {
        if (c->header_used == sizeof c->header - 1) end(c, now, "a header too long");
        return taken;
    }
    *stop = 0;
    taken = (size_t)(stop - c->header) + 4 - had;
    c->status = atoi(c->header + 9);
    c->at = CONTENT_TO_END;
    for (char *line = strstr(c->header, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, "content-length:", 15)) {
            c->left = strtoull(line + 15, NULL, 10);
            c->at = CONTENT_BY_LENGTH;
        } else if (!strncasecmp(line, "transfer-encoding:", 18)) {
            c->chunked = (struct chunked){0};
            c->at = CONTENT_IN_CHUNKS;
        } else if (!strncasecmp(line, "connection: close", 17)) {
            c->closes = 1;
        }
    }
    if (c->status == 100) {
        c->at = HEADER;
        c->header_used = 0;
    } else if (c->at == CONTENT_BY_LENGTH && !c->left) {
        judge(c, now);
    }
    return taken;
}

static void read_answer(struct connection *c, const char *b, size_t n, uint64_t now) {
    const char *piece = b;
    size_t i = 0, length;
    while (i < n && c->at != IDLE) {
        switch (c->at) {
        case HEADER:
            i += read_header(c, b + i, n - i, now);
            break;
        case CONTENT_BY_LENGTH:
            length = n - i < c->left ? n - i : c->left;
            read_content(c, b + i, length, now);
            i += length;
            c->left -= length;
            if (!c->left) judge(c, now);
            break;
        case CONTENT_IN_CHUNKS:
            i += next_piece(&c->chunked, b + i, n - i, &piece, &length);
            read_content(c, piece, length, now);
            if (c->chunked.at == END) judge(c, now);
            break;
        default:
            read_content(c, b + i, n - i, now);
            i = n;
        }
    }
}

static void serve(struct connection *c, uint32_t events) {
    static char received[256 * 1024];
    if (events & EPOLLOUT) send_rest(c);
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    ssize_t n = recv(c->fd, received, sizeof received, 0);
    uint64_t now = now_ns();
    if (n > 0) {
        read_answer(c, received, (size_t)n, now);
    } else if (n == 0 || errno != EAGAIN) {
        hang_up(c);
        if (c->at == CONTENT_TO_END)
            judge(c, now);
        else if (c->at != IDLE)
            end(c, now, "closed too early");
    }
}

/* --- the whole run --------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    float one = *(const float *)a, other = *(const float *)b;
    return (one > other) - (one < other);
}

static void print_times(const char *name, struct times *times) {
    static const struct {
        const char *name;
        double share;
    } ranks[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1}};
    qsort(times->values, times->used, sizeof *times->values, compare);
    printf(",\"%s\":{\"n\":%zu", name, times->used);
    for (size_t i = 0; times->used && i < sizeof ranks / sizeof *ranks; i++)
        printf(",\"%s\":%.1f", ranks[i].name, times->values[(size_t)(ranks[i].share * (double)(times->used - 1) + 0.5)]);
    printf("}");
}

static void print_result(double seconds) {
    printf("{\"seconds\":%.3f,\"asked\":%llu,\"answered\":%llu,\"errors\":%llu,\"chunks\":%llu", seconds, asked,
           answered, errors, chunks);
    print_times("latency", &latencies);
    if (options.stream) {
        print_times("first", &firsts);
        print_times("delay", &delays);
    }
    printf(",\"error\":\"");
    for (char *at = first_error; *at; at++)
        if (*at >= ' ' && *at < 127 && *at != '"' && *at != '\\') putchar(*at);
    printf("\"}\n");
}

static void read_options(int count, char **arguments) {
    static const struct option known[] = {
        {"port", 1, NULL, 'p'},     {"path", 1, NULL, 'a'},   {"body", 1, NULL, 'b'},    {"connections", 1, NULL, 'c'},
        {"seconds", 1, NULL, 's'},  {"rate", 1, NULL, 'r'},   {"warm", 1, NULL, 'w'},    {"requests", 1, NULL, 'n'},
        {"ramp-ms", 1, NULL, 'm'},  {"stream", 0, NULL, 'S'}, {"stamps", 1, NULL, 't'},  {"header", 1, NULL, 'H'},
        {"turns", 1, NULL, 'T'},
        {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, arguments, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': options.port = atoi(optarg); break;
        case 'a': options.path = optarg; break;
        case 'b': options.body = optarg; break;
        case 'c': options.connections = atoi(optarg); break;
        case 's': options.seconds = atof(optarg); break;
        case 'r': options.rate = atof(optarg); break;
        case 'w': options.warm = atoi(optarg); break;
        case 'n': options.requests = atoll(optarg); break;
        case 'm': options.ramp_ms = atoi(optarg); break;
        case 'S': options.stream = 1; break;
        case 'T': options.turns = atoi(optarg); break;
        case 't': options.stamps = atoi(optarg); break;
        case 'H':
            append(&options.headers, optarg, strlen(optarg));
            append(&options.headers, "\r\n", 2);
            break;
        default: exit(2);
        }
    }
    if (!options.port || !options.body || (!options.requests && !(options.seconds > 0))) {
        fprintf(stderr, "usage: %s --port P --body FILE (--seconds S | --requests N) [--connections C] [--rate R]\n"
                        "       [--warm N] [--ramp-ms M] [--turns N] [--stream] [--stamps N] [--path PATH] [--header 'K: V']...\n",
                arguments[0]);
        exit(2);
    }
}

static void make_request(void) {
    struct buffer body = {0};
    char piece[65536];
    FILE *file = fopen(options.body, "rb");
    if (!file) die(options.body);
    for (size_t n; (n = fread(piece, 1, sizeof piece, file));) append(&body, piece, n);
    fclose(file);
    int n = snprintf(piece, sizeof piece,
                     "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: */*\r\nContent-Type: application/json\r\n"
                     "Authorization: Bearer sk-bench\r\n%sContent-Length: ",
                     options.path, options.port, options.headers.used ? options.headers.bytes : "");
    append(&head, piece, (size_t)n);
    char *end = body.bytes + body.used, *first = memmem(body.bytes, body.used, TURN, sizeof TURN - 1);
    append(&before, body.bytes, (size_t)((first ? first : end) - body.bytes));
    if (first) {
        char *told = first + sizeof TURN - 1;
        char *number = memmem(told, (size_t)(end - told), NUMBER, DIGITS);
        char *last = number ? memmem(number, (size_t)(end - number), TURN, sizeof TURN - 1) : NULL;
        if (!last) {
            fprintf(stderr, "%s: a turn lacks its number or its end\n", options.body);
            exit(2);
        }
        append(&turn[0], told, (size_t)(number - told));
        append(&turn[1], number + DIGITS, (size_t)(last - number) - DIGITS);
        append(&after, last + sizeof TURN - 1, (size_t)(end - last) - (sizeof TURN - 1));
    }
    free(body.bytes);
}

/* Asks on each connection that is free and may, as long as there is `left` to ask and, at a given rate, one is due.
   Returns when to look again. */
static uint64_t ask_where_due(struct connection *all, long long *left, uint64_t *slot, uint64_t now) {
    uint64_t soonest = now + SECOND, gap = options.rate > 0 && measuring ? (uint64_t)(SECOND / options.rate) : 0;
    for (int i = 0; i < options.connections && *left; i++) {
        struct connection *c = &all[i];
        if (c->at != IDLE) continue;
        uint64_t due = gap ? *slot : now;
        if (c->may_begin > now || due > now) {
            uint64_t then = c->may_begin > due ? c->may_begin : due;
            if (then < soonest) soonest = then;
            continue;
        }
        *slot += gap;
        --*left;
        ask(c, due);
    }
    return soonest;
}

static void sleep_until(int alarm, uint64_t then) {
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(then / SECOND), .tv_nsec = (long)(then % SECOND)}};
    timerfd_settime(alarm, TFD_TIMER_ABSTIME, &at, NULL);
    struct epoll_event ready[512];
    int n = epoll_wait(poller, ready, 512, -1);
    for (int i = 0; i < n; i++) {
        struct connection *c = ready[i].data.ptr;
        if (c && c->fd >= 0) serve(c, ready[i].events);
    }
}

/* Asks until so many are asked or the time is over, and waits for the answers. Returns the seconds to the last one. */
static double run(struct connection *all, int alarm, long long requests, double seconds) {
    uint64_t start = now_ns(), slot = start, stop = seconds > 0 ? start + (uint64_t)(seconds * SECOND) : 0;
    long long left = requests ? requests : -1;
    for (int i = 0; i < options.connections; i++)
        all[i].may_begin = start + (uint64_t)options.ramp_ms * MILLISECOND * (uint64_t)i / (uint64_t)options.connections;
    for (;;) {
        uint64_t now = now_ns(), then = now + SECOND;
        if (stop && now >= stop) left = 0;
        if (left) then = ask_where_due(all, &left, &slot, now);
        if (!left && !in_flight) break;
        if (now >= stop + PATIENCE && now >= (last_answer > start ? last_answer : start) + PATIENCE) {
            errors += (unsigned)in_flight;
            if (!*first_error) snprintf(first_error, sizeof first_error, "%d answers did not end", in_flight);
            break;
        }
        if (stop && left && stop < then) then = stop;
        sleep_until(alarm, then);
    }
    return (double)((last_answer > start ? last_answer : now_ns()) - start) / SECOND;
}

int main(int count, char **arguments) {
    signal(SIGPIPE, SIG_IGN);
    read_options(count, arguments);
    make_request();
    address = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)options.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    poller = epoll_create1(0);
    int alarm = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, alarm, &event);
    struct connection *all = calloc((size_t)options.connections, sizeof *all);
    if (!all) die("calloc");
    for (int i = 0; i < options.connections; i++) all[i].fd = -1;
    if (options.warm) {
        run(all, alarm, options.warm, 0);
        *first_error = 0; /* an overloaded start is not what is measured; what goes on shows again */
    }
    measuring = 1;
    print_result(run(all, alarm, options.requests, options.seconds));
    return 0;
}
