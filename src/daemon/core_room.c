/* Room on the disk. A full disk must be mendable with our own tools: deleting a job is a commit first, and a commit
 * needs room. So the store holds some for itself, which nobody else can take. More is held by a file, STATE/reserve, for
 * what keepers and we write beside the store: a piece at a time is given back before commits that lead to more room
 * (deleting, cancelling, draining, what the controller does about them), and before no others. Whoever looks is told before: "low" while what is left may soon be too little, "full" when nothing is
 * left but the reserve, or not even that; new jobs are refused then. */
#include "daemon/core_impl.h"

#include "base/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { PIECES = 16 };
static const int64_t FULL_BYTES = 1 << 20, STORE_BYTES = 4 << 20, LOW_BYTES = (int64_t)1 << 30;
static const char *const NAMES[] = {"ok", "low", "full"};

const char *adli_room_name(adli_room_state state)
{
    return NAMES[state];
}

/* Takes or gives back room until the file has so many bytes. Under room.lock. */
static bool hold(adli_room *room, int64_t bytes)
{
    bool more = bytes > room->held;
    int failure = more                                     ? posix_fallocate(room->fd, 0, bytes)
                  : ftruncate(room->fd, (off_t)bytes) != 0 ? errno
                                                           : 0;
    if (failure != 0 && more && ftruncate(room->fd, (off_t)room->held) != 0)
        room->held = 0; /* whatever it has now is given back, too, when it is asked for */
    if (failure == 0)
        room->held = bytes;
    return failure == 0;
}

static void measure(adli_room *room)
{
    struct statvfs disk;
    if (fstatvfs(room->fd, &disk) != 0)
        return;
    room->free_bytes = (int64_t)(disk.f_bavail * disk.f_frsize);
    room->size_bytes = (int64_t)(disk.f_blocks * disk.f_frsize);
}

static adli_room_state judge(const adli_room *room)
{
    int64_t low = room->size_bytes / 50 < LOW_BYTES ? room->size_bytes / 50 : LOW_BYTES;
    if (low < room->wanted)
        low = room->wanted;
    int64_t full = FULL_BYTES < room->wanted ? FULL_BYTES : room->wanted;
    return room->held < room->wanted || room->free_bytes <= full ? ADLI_ROOM_FULL
           : room->free_bytes < low                              ? ADLI_ROOM_LOW
                                                                 : ADLI_ROOM_OK;
}

void adli_core_make_room(adli_core *core)
{
    adli_room *room = &core->room;
    if (room->fd < 0)
        return;
    pthread_mutex_lock(&room->lock);
    measure(room);
    int64_t piece = room->wanted / PIECES + 1, left = room->held > piece ? room->held - piece : 0;
    bool given = room->free_bytes < piece && room->held > 0 && hold(room, left);
    pthread_mutex_unlock(&room->lock);
    if (given)
        adli_say(ADL_LOG_WARNING, "disk full: a piece of the reserve is given back");
}

adl_status adli_core_keep_room(adli_core *core)
{
    char path[4096];
    adli_room *room = &core->room;
    if (core->config.limits.reserve_bytes == 0)
        return ADL_OK;
    snprintf(path, sizeof path, "%s/reserve", core->state_dir);
    adl_status status = adli_dirs_open(path, O_RDWR | O_CREAT, 0600, &room->fd);
    if (status != ADL_OK)
        return status;
    room->wanted = core->config.limits.reserve_bytes;
    off_t there = lseek(room->fd, 0, SEEK_END);
    room->held = there > 0 ? (int64_t)there : 0;
    if (room->held > room->wanted)
        hold(room, room->wanted);
    adli_core_look_at_room(core);
    return ADL_OK;
}

void adli_core_look_at_room(adli_core *core)
{
    adli_room *room = &core->room;
    if (room->fd < 0)
        return;
    pthread_mutex_lock(&room->lock);
    adli_room_state before = room->state;
    measure(room);
    if (room->held < room->wanted && room->free_bytes > 2 * (room->wanted - room->held)) {
        hold(room, room->wanted);
        measure(room);
    }
    if (room->free_bytes > STORE_BYTES)
        adli_store_hold(core->store, STORE_BYTES);
    adli_room_state now = room->state = judge(room);
    int64_t left = room->free_bytes;
    pthread_mutex_unlock(&room->lock);
    if (now != before)
        adli_say(now == ADLI_ROOM_OK ? ADL_LOG_INFO : ADL_LOG_WARNING,
                 "the disk of %s: %s, %lld MiB free", core->state_dir, NAMES[now],
                 (long long)(left >> 20));
}

adli_room_state adli_core_room(adli_core *core, int64_t *free_bytes, int64_t *size_bytes)
{
    adli_room *room = &core->room;
    pthread_mutex_lock(&room->lock);
    adli_room_state state = room->state;
    *free_bytes = room->free_bytes;
    *size_bytes = room->size_bytes;
    pthread_mutex_unlock(&room->lock);
    return state;
}

adl_status adli_core_check_room(adli_core *core)
{
    int64_t left, size;
    adli_core_look_at_room(core);
    if (adli_core_room(core, &left, &size) != ADLI_ROOM_FULL)
        return ADL_OK;
    return adli_fail(ADL_EIO,
                     "disk full: %lld of %lld MiB are free at %s; delete jobs (adaptdl delete) or "
                     "other files",
                     (long long)(left >> 20), (long long)(size >> 20), core->state_dir);
}
