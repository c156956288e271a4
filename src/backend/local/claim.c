#include "backend/local/claim.h"

#include "proc/procs.h"
#include "backend/local/record.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CLAIM_BYTES = 64 };

adl_status adli_claim_take(int dir, int member, int *out)
{
    char temporary[48], name[32], text[CLAIM_BYTES];
    *out = -1;
    snprintf(name, sizeof name, "%d.claim", member);
    snprintf(temporary, sizeof temporary, "%d.claim.tmp.%ld", member, (long)getpid());
    if (faccessat(dir, name, F_OK, 0) == 0)
        return adli_fail(ADL_ESTATE, "%s: it is taken", name);
    int fd = openat(dir, temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return adli_fail(ADL_EIO, "%s: %s", name, strerror(errno));
    int length =
        snprintf(text, sizeof text, "c %ld %llu\n", (long)getpid(), adli_procs_born(getpid()));
    /* Locked, written and synced before it has its name: no one ever sees a claim that is not. */
    bool made = flock(fd, LOCK_EX | LOCK_NB) == 0 && write(fd, text, (size_t)length) == length &&
                fsync(fd) == 0 && linkat(dir, temporary, dir, name, 0) == 0;
    int why = errno;
    unlinkat(dir, temporary, 0);
    if (made && fsync(dir) == 0) {
        *out = fd;
        return ADL_OK;
    }
    close(fd);
    return adli_fail(!made && why == EEXIST ? ADL_ESTATE : ADL_EIO, "%s: %s", name, strerror(why));
}

void adli_claim_ready(int fd)
{
    if (pwrite(fd, "r", 1, 0) != 1)
        return; /* it is then seen as starting until it ends */
}

adli_claim_state adli_claim_look(int dir, int member, pid_t *keeper, int *out)
{
    char name[32], text[CLAIM_BYTES] = "";
    *keeper = 0;
    *out = -1;
    snprintf(name, sizeof name, "%d.claim", member);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? ADLI_CLAIM_NONE : ADLI_CLAIM_STARTING;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        *out = fd;
        return ADLI_CLAIM_DEAD;
    }
    ssize_t got = pread(fd, text, sizeof text - 1, 0);
    close(fd);
    if (got < 3)
        return ADLI_CLAIM_STARTING;
    *keeper = (pid_t)strtol(text + 2, NULL, 10);
    return text[0] == 'r' ? ADLI_CLAIM_RUNNING : ADLI_CLAIM_STARTING;
}

unsigned long long adli_claim_born(int fd)
{
    char text[CLAIM_BYTES] = "";
    unsigned long long born = 0;
    if (pread(fd, text, sizeof text - 1, 0) < 0 || sscanf(text, "%*c %*d %llu", &born) != 1)
        return 0;
    return born;
}

pid_t adli_claim_keeper(int dir, int member, unsigned long long *born)
{
    char name[32], text[CLAIM_BYTES] = "";
    long keeper = 0;
    *born = 0;
    snprintf(name, sizeof name, "%d.claim", member);
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    if (pread(fd, text, sizeof text - 1, 0) < 0 || sscanf(text, "%*c %ld %llu", &keeper, born) != 2)
        keeper = 0;
    close(fd);
    return (pid_t)keeper;
}

void adli_claim_signal(int dir, int member, int number)
{
    pid_t keeper, again;
    int lock;
    adli_claim_state state = adli_claim_look(dir, member, &keeper, &lock);
    if (lock >= 0)
        close(lock);
    if (keeper <= 1 || (state != ADLI_CLAIM_STARTING && state != ADLI_CLAIM_RUNNING))
        return;
    int process = (int)syscall(SYS_pidfd_open, keeper, 0);
    if (process < 0) {
        if (errno == ENOSYS)
            kill(keeper, number);
        return;
    }
    /* The keeper lives after the descriptor was opened, so it is the keeper's. */
    state = adli_claim_look(dir, member, &again, &lock);
    if (lock >= 0)
        close(lock);
    else if (again == keeper)
        syscall(SYS_pidfd_send_signal, process, number, NULL, 0);
    close(process);
}

void adli_result_set(adli_result *out, adli_member_state state, int exit_code, adli_cause cause,
                     const char *format, ...)
{
    va_list arguments;
    *out = (adli_result){.state = state, .exit_code = exit_code, .cause = cause};
    if (!format)
        return;
    va_start(arguments, format);
    vsnprintf(out->message, sizeof out->message, format, arguments);
    va_end(arguments);
    for (char *c = out->message; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

adl_status adli_result_write(int dir, int member, const adli_result *result)
{
    char name[32];
    adli_buf buf;
    adli_buf_init(&buf, 4096);
    snprintf(name, sizeof name, "%d.result", member);
    adli_record_put_int(&buf, "state", result->state);
    adli_record_put_int(&buf, "exit", result->exit_code);
    adli_record_put(&buf, "reason", adli_cause_name(result->cause));
    adli_record_put(&buf, "message", result->message);
    adli_record_put_int(&buf, "endedMs", (int64_t)(result->ended_s * 1e3));
    adl_status status = adli_record_write(dir, name, &buf, false);
    adli_buf_fini(&buf);
    return status;
}

static adl_status decode(const adli_buf *buf, adli_result *out)
{
    int64_t state, code, ended_ms = 0;
    size_t at = 0;
    adl_status status = adli_record_next_int(buf, &at, "state", &state);
    if (status == ADL_OK)
        status = adli_record_next_int(buf, &at, "exit", &code);
    if (status != ADL_OK)
        return status;
    const char *reason = adli_record_next(buf, &at, "reason");
    const char *message = adli_record_next(buf, &at, "message");
    if (!reason || !message || state < ADLI_MEMBER_SUCCEEDED || state > ADLI_MEMBER_FAILED)
        return adli_fail(ADL_ECORRUPT, "not a result");
    adli_result_set(out, (adli_member_state)state, (int)code, adli_cause_named(reason), "%s",
                    message);
    if (at < buf->length) { /* older ones are without */
        status = adli_record_next_int(buf, &at, "endedMs", &ended_ms);
        out->ended_s = 1e-3 * (double)ended_ms;
    }
    return status;
}

adl_status adli_result_read(int dir, int member, adli_result *out)
{
    char name[32];
    adli_buf buf;
    *out = (adli_result){0};
    adli_buf_init(&buf, 4096);
    snprintf(name, sizeof name, "%d.result", member);
    adl_status status = adli_record_read(dir, name, &buf);
    if (status == ADL_OK)
        status = decode(&buf, out);
    adli_buf_fini(&buf);
    return status;
}
