/* Keeps connections of RocketMQ's protocol busy: the inner loop of bench/generator/native.py, which explains it.
 *
 * Frames stand one behind the other in one array, as bench/generator/ring.py makes them; here only the fields of each
 * frame are written before it is sent. Nothing is allocated while the loop runs, except for what the kernel would not
 * take of a send.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FIELD_BODY, FIELD_NUMBER, FIELD_OPAQUE, FIELD_DUE };
enum { RECEIVE_BYTES = 1 << 18, EVENTS = 64, WAIT_BUCKETS = 64 * 40, OUT_MAX = 1 << 16, REFUSAL_BYTES = 400 };
enum { RAN = 0, CLOSED = 1, FAILED = 2, TOO_LONG = 3 };

struct field {
    int32_t kind, at;
};

struct load {
    int32_t connections, rows, size, batch, stride, fields;
    int64_t due_from_ms, due_span_ms, due_at_ms;
    int64_t in_flight; /* requests a connection may have out; without a limit for a rate */
    int64_t most;      /* requests in all */
    double rate;       /* requests a second; 0: as fast as replies come */
    double seconds, tick_seconds, drain_seconds;
};

struct result {
    int64_t number; /* in: the first message's; out: the next one's */
    uint64_t random;
    int64_t sent, answered, refused;
    double idle_seconds, loop_seconds, loop_cpu_seconds, all_seconds, behind_seconds, first_accepted_ms;
    int64_t waits[WAIT_BUCKETS]; /* replies by waiting time, see bucket_of */
    int32_t error;
    char refusal[REFUSAL_BYTES + 1];
};

struct out { /* one send: when, and how many of its requests have no reply yet */
    double at;
    int64_t count;
};

struct connection {
    int fd;
    int64_t free;
    uint8_t *rest; /* what the kernel would not take */
    size_t rest_at, rest_size;
    uint8_t *data; /* a part of a reply */
    size_t data_size;
    struct out *out;
    uint32_t first, last; /* of out, modulo OUT_MAX */
};

static double clock_of(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void) { return clock_of(CLOCK_MONOTONIC); }

static int64_t now_ms(void) { return (int64_t)(clock_of(CLOCK_REALTIME) * 1000.0); }

/* Log-linear: 64 buckets an octave of 100 ns, so that a percentile is right to a hundredth. */
static int bucket_of(double seconds) {
    uint64_t units = seconds <= 0 ? 0 : (uint64_t)(seconds * 1e7);
    if (units < 64) return (int)units;
    int octave = 63 - __builtin_clzll(units);
    int bucket = (octave - 5) * 64 + (int)(units >> (octave - 6)) - 64;
    return bucket < WAIT_BUCKETS ? bucket : WAIT_BUCKETS - 1;
}

static uint64_t drawn(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static void digits(uint8_t *at, int64_t value, int width) {
    while (width--) {
        at[width] = (uint8_t)('0' + value % 10);
        value /= 10;
    }
}

static void big_endian(uint8_t *at, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(at, &value, 8);
}

/* Write due times and numbers into one frame. */
static void stamp(const struct load *load, const struct field *fields, struct result *result, uint8_t *frame) {
    static const char hex[] = "0123456789ABCDEF";
    int64_t start = (load->due_at_ms ? load->due_at_ms : now_ms()) + load->due_from_ms;
    for (int message = 0; message < load->batch; message++) {
        int64_t number = result->number++;
        int64_t due_ms = start + (int64_t)(drawn(&result->random) % (uint64_t)load->due_span_ms);
        uint8_t *base = frame + (size_t)message * (size_t)load->stride;
        for (int i = 0; i < load->fields; i++) {
            uint8_t *at = base + fields[i].at;
            switch (fields[i].kind) {
            case FIELD_BODY:
                big_endian(at, (uint64_t)due_ms * 1000);
                big_endian(at + 8, (uint64_t)number);
                break;
            case FIELD_NUMBER:
                for (int digit = 0; digit < 16; digit++) at[digit] = (uint8_t)hex[number >> (60 - 4 * digit) & 15];
                break;
            case FIELD_OPAQUE: /* of the whole request: only its first message writes it */
                if (message == 0) digits(at, 1000000000 + number % 1000000000, 10);
                break;
            default:
                digits(at, due_ms, 13);
            }
        }
    }
}

static int broken(void) { return errno == ECONNRESET || errno == EPIPE ? CLOSED : FAILED; }

static void want(int poll, struct connection *connection, uint32_t index, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u32 = index};
    epoll_ctl(poll, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Send at most so many requests by one call; return how many, or -1. */
static int64_t write_requests(const struct load *load, const struct field *fields, struct result *result, int poll,
                              struct connection *connection, uint32_t index, uint8_t *frames, int *row, int64_t count) {
    if ((connection->last + 1) % OUT_MAX == connection->first) return 0; /* too many sends without a reply */
    if (*row >= load->rows) *row = 0;
    if (count > load->rows - *row) count = load->rows - *row;
    uint8_t *data = frames + (size_t)*row * (size_t)load->size;
    size_t size = (size_t)count * (size_t)load->size;
    for (int64_t i = 0; i < count; i++) stamp(load, fields, result, data + (size_t)i * (size_t)load->size);
    *row += (int)count;
    connection->out[connection->last] = (struct out){now(), count};
    connection->last = (connection->last + 1) % OUT_MAX;
    connection->free -= count;
    result->sent += count;
    ssize_t written = send(connection->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
        if (errno != EAGAIN && errno != EINTR) return -1;
        written = 0;
    }
    if ((size_t)written < size) { /* a copy: these rows get new values before the kernel may have taken them */
        connection->rest_size = size - (size_t)written;
        connection->rest_at = 0;
        connection->rest = malloc(connection->rest_size);
        if (!connection->rest) return -1;
        memcpy(connection->rest, data + written, connection->rest_size);
        want(poll, connection, index, EPOLLIN | EPOLLOUT);
    }
    return count;
}

static int go_on(int poll, struct connection *connection, uint32_t index) {
    if (!connection->rest) return RAN;
    ssize_t written = send(connection->fd, connection->rest + connection->rest_at,
                           connection->rest_size - connection->rest_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) return errno == EAGAIN || errno == EINTR ? RAN : broken();
    connection->rest_at += (size_t)written;
    if (connection->rest_at == connection->rest_size) {
        free(connection->rest);
        connection->rest = NULL;
        want(poll, connection, index, EPOLLIN);
    }
    return RAN;
}

static void answer(struct result *result, struct connection *connection, double at, int64_t answered) {
    result->answered += answered;
    connection->free += answered;
    while (answered && connection->first != connection->last) {
        struct out *oldest = &connection->out[connection->first];
        int64_t count = oldest->count < answered ? oldest->count : answered;
        result->waits[bucket_of(at - oldest->at)] += count;
        answered -= count;
        oldest->count -= count;
        if (!oldest->count) connection->first = (connection->first + 1) % OUT_MAX;
    }
}

/* Read what has come on a connection, and count the replies in it. */
static int read_replies(struct result *result, struct connection *connection, double at) {
    ssize_t got = recv(connection->fd, connection->data + connection->data_size,
                       RECEIVE_BYTES - connection->data_size, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR ? RAN : broken();
    if (got == 0) return CLOSED;
    connection->data_size += (size_t)got;
    size_t from = 0;
    int64_t answered = 0;
    while (connection->data_size - from >= 4) {
        const uint8_t *frame = connection->data + from;
        size_t size = 4 + ((size_t)frame[0] << 24 | (size_t)frame[1] << 16 | (size_t)frame[2] << 8 | frame[3]);
        if (size > RECEIVE_BYTES) return TOO_LONG;
        if (size > connection->data_size - from) break;
        if (!memmem(frame, size, "\"code\":0", 8)) {
            result->refused++;
            if (!result->refusal[0]) {
                size_t shown = size < REFUSAL_BYTES ? size : REFUSAL_BYTES;
                for (size_t i = 0; i < shown; i++) result->refusal[i] = frame[i] ? (char)frame[i] : ' ';
            }
        } else if (result->first_accepted_ms == 0) {
            result->first_accepted_ms = clock_of(CLOCK_REALTIME) * 1000.0;
        }
        answered++;
        from += size;
    }
    connection->data_size -= from;
    if (from) memmove(connection->data, connection->data + from, connection->data_size);
    answer(result, connection, at, answered);
    return RAN;
}

/* Wait for replies; the connections that had some stand in `ready`. */
static int wait_replies(struct result *result, int poll, struct connection *connections, double seconds,
                        uint32_t *ready, int *ready_count) {
    struct epoll_event events[EVENTS];
    double before = now();
    struct timespec most = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    int count = epoll_pwait2(poll, events, EVENTS, &most, NULL);
    double at = now();
    result->idle_seconds += at - before;
    *ready_count = 0;
    if (count < 0) return errno == EINTR ? RAN : broken();
    for (int i = 0; i < count; i++) {
        uint32_t index = events[i].data.u32;
        int error = RAN;
        if (events[i].events & EPOLLOUT) error = go_on(poll, &connections[index], index);
        if (!error && events[i].events & ~(uint32_t)EPOLLOUT) error = read_replies(result, &connections[index], at);
        if (error) return error;
        ready[(*ready_count)++] = index;
    }
    return RAN;
}

static int closed_loop(const struct load *load, const struct field *fields, struct result *result, int poll,
                       struct connection *connections, uint8_t *frames, double until) {
    uint32_t ready[EVENTS];
    int count = 0, row = 0;
    for (int32_t i = 0; i < load->connections; i++)
        while (connections[i].free > 0 && !connections[i].rest && result->sent < load->most) {
            int64_t most = load->most - result->sent;
            int64_t wanted = connections[i].free < most ? connections[i].free : most;
            int64_t sent = write_requests(load, fields, result, poll, &connections[i], (uint32_t)i, frames, &row, wanted);
            if (sent < 0) return broken();
            if (!sent) break;
        }
    while (now() < until && result->sent < load->most) {
        int error = wait_replies(result, poll, connections, 0.2, ready, &count);
        if (error) return error;
        for (int i = 0; i < count; i++) {
            struct connection *one = &connections[ready[i]];
            while (one->free > 0 && !one->rest && result->sent < load->most) {
                int64_t most = load->most - result->sent;
                int64_t wanted = one->free < most ? one->free : most;
                int64_t sent = write_requests(load, fields, result, poll, one, ready[i], frames, &row, wanted);
                if (sent < 0) return broken();
                if (!sent) break;
            }
        }
    }
    return RAN;
}

/* At a rate, whatever comes back, each connection in its turn. */
static int open_loop(const struct load *load, const struct field *fields, struct result *result, int poll,
                     struct connection *connections, uint8_t *frames, double start, double until) {
    uint32_t ready[EVENTS];
    int count = 0, row = 0;
    int64_t turn = 0;
    double at;
    while ((at = now()) < until && result->sent < load->most) {
        int64_t wanted = (int64_t)((at - start) * load->rate) + 1;
        if (wanted > load->most) wanted = load->most;
        wanted -= result->sent;
        if ((double)wanted / load->rate > result->behind_seconds) result->behind_seconds = (double)wanted / load->rate;
        int64_t share = (wanted + load->connections - 1) / load->connections;
        if (share < 1) share = 1;
        for (int32_t i = 0; i < load->connections && wanted > 0; i++) {
            uint32_t index = (uint32_t)(turn++ % load->connections);
            if (connections[index].rest) continue;
            int64_t most = share < wanted ? share : wanted;
            int64_t sent = write_requests(load, fields, result, poll, &connections[index], index, frames, &row, most);
            if (sent < 0) return broken();
            wanted -= sent;
        }
        int error = wait_replies(result, poll, connections, load->tick_seconds, ready, &count);
        if (error) return error;
    }
    return RAN;
}

/* Run a load over connections that are open; `frames` are rows * size bytes. Returns RAN or what went wrong. */
int timewheel_run(const struct load *load, const struct field *fields, const int32_t *fds, uint8_t *frames,
                  struct result *result) {
    int poll = epoll_create1(EPOLL_CLOEXEC);
    struct connection *connections = calloc((size_t)load->connections, sizeof *connections);
    int error = poll < 0 || !connections ? FAILED : RAN;
    for (int32_t i = 0; !error && i < load->connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        connections[i].fd = fds[i];
        connections[i].free = load->in_flight;
        connections[i].data = malloc(RECEIVE_BYTES);
        connections[i].out = calloc(OUT_MAX, sizeof *connections[i].out);
        if (!connections[i].data || !connections[i].out || epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event)) error = FAILED;
    }
    double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID), start = now(), until = start + load->seconds;
    if (!error && load->rate > 0)
        error = open_loop(load, fields, result, poll, connections, frames, start, until);
    else if (!error)
        error = closed_loop(load, fields, result, poll, connections, frames, until);
    result->loop_cpu_seconds = clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    result->loop_seconds = now() - start;
    uint32_t ready[EVENTS];
    int count = 0;
    double idle = result->idle_seconds, end = now() + load->drain_seconds;
    while (!error && result->answered < result->sent && now() < end)
        error = wait_replies(result, poll, connections, 0.1, ready, &count);
    result->idle_seconds = idle;
    result->all_seconds = now() - start;
    result->error = error;
    for (int32_t i = 0; connections && i < load->connections; i++) {
        free(connections[i].rest);
        free(connections[i].data);
        free(connections[i].out);
    }
    free(connections);
    if (poll >= 0) close(poll);
    return error;
}
