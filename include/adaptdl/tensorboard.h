/* TensorBoard event files, written without TensorFlow or Python. One writer is one file
 * LOGDIR/events.out.tfevents.<seconds>.<host>.<pid>.<number>; TensorBoard shows each sub-directory of
 * its log directory as one run.
 *
 * Times are arguments: seconds since 1970 (wall_time_s). Events are buffered: they are in the file
 * after adl_tensorboard_flush or close, or when the buffer is full. A disk that is full does not lose
 * the file: what could not be written stays in the buffer (up to its limit, then new events are
 * refused and counted) and is tried again at the next flush. A writer belongs to one thread at a
 * time. */
#ifndef ADAPTDL_TENSORBOARD_H
#define ADAPTDL_TENSORBOARD_H

#include "adaptdl/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ADL_TENSORBOARD_TAG_MAX  1024      /* bytes of a tag */
#define ADL_TENSORBOARD_TEXT_MAX (1 << 20) /* bytes of one text */

typedef struct adl_tensorboard adl_tensorboard;

typedef struct adl_tensorboard_options {
    size_t size;            /* sizeof */
    const char *host;       /* in the file's name; NULL: this machine's name */
    size_t buffer_bytes;    /* write when this much is buffered */
    size_t max_unwritten;   /* refuse events when this much could not be written */
    uint64_t max_file_size; /* refuse events beyond this; 0: no limit */
} adl_tensorboard_options;

#define ADL_TENSORBOARD_OPTIONS_INIT                                                               \
    {                                                                                              \
        .size = sizeof(adl_tensorboard_options), .buffer_bytes = 64 << 10,                         \
        .max_unwritten = 16 << 20                                                                  \
    }

/* Creates the log directory (with its parents) and a new event file in it, whose first event is the
 * file version. options == NULL: the defaults. EIO names the path. *out is NULL on failure. */
ADL_API ADL_MUST adl_status adl_tensorboard_open(const char *logdir, double wall_time_s,
                                                 const adl_tensorboard_options *options,
                                                 adl_tensorboard **out);

/* Flushes and frees. The result is the flush's; the writer is gone either way. NULL is fine. */
ADL_API adl_status adl_tensorboard_close(adl_tensorboard *writer);

/* One number; stored as a 32-bit float, as TensorBoard does. NaN and infinities are allowed.
 * EINVAL: an empty tag, or one longer than ADL_TENSORBOARD_TAG_MAX. EIO: the buffer had to be written
 * and could not; the event itself is kept unless the buffer is beyond max_unwritten (ENOMEM). The
 * same for text and histogram. */
ADL_API adl_status adl_tensorboard_scalar(adl_tensorboard *writer, const char *tag, double value,
                                          int64_t step, double wall_time_s);

/* A new start of the same log: TensorBoard forgets what it has read of steps from this one on, in this
 * and older files of the directory. To be written before the first other event. */
ADL_API adl_status adl_tensorboard_restart(adl_tensorboard *writer, int64_t step,
                                           double wall_time_s);

/* Markdown text, at most ADL_TENSORBOARD_TEXT_MAX bytes. */
ADL_API adl_status adl_tensorboard_text(adl_tensorboard *writer, const char *tag, const char *text,
                                        int64_t step, double wall_time_s);

/* The distribution of count values: bucket limits grow by 1.1 from 1e-12 in both directions, as
 * TensorFlow's do. Values that are not finite are left out. EINVAL when none is left. */
ADL_API adl_status adl_tensorboard_histogram(adl_tensorboard *writer, const char *tag,
                                             const double *values, size_t count, int64_t step,
                                             double wall_time_s);

/* Writes what is buffered (no fsync). EIO: it stays buffered. */
ADL_API ADL_MUST adl_status adl_tensorboard_flush(adl_tensorboard *writer);

/* The file's path; events refused so far. */
ADL_API const char *adl_tensorboard_path(const adl_tensorboard *writer);
ADL_API uint64_t adl_tensorboard_dropped(const adl_tensorboard *writer);

#ifdef __cplusplus
}
#endif
#endif
