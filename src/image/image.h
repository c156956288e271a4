/* A job's files on their way from a user's directory to the cluster. On one side a directory and
 * its Dockerfile become an image: the tree of files that COPY and ADD describe, with the
 * environment, the working directory and the command beside it. It travels as a tar archive
 * together with the job file. On the other side the archive, which anybody may have made,
 * becomes a directory again.
 *
 * An archive of a job: first the entry "job.yaml" or "job.json", then directories and regular
 * files below "image/". Nothing else is accepted: no links, no devices, no absolute names, no
 * "..". */
#ifndef ADLI_IMAGE_H
#define ADLI_IMAGE_H

#include "base/buf.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- archive -> directory ---- */

enum { ADLI_IMAGE_JOB_MAX_BYTES = 1 << 20 };

typedef struct adli_image_limits {
    int64_t max_bytes;   /* of all files together, unpacked; 0: 8 GiB */
    int64_t max_entries; /* 0: 1,000,000 */
} adli_image_limits;

/* Appends the job file, which is the archive's first entry, to job and says which form it has.
 * Reads no further. EINVAL: not such an archive; the text names the entry. EIO, ENOENT: the
 * file. */
ADL_MUST adl_status adli_image_read_job(const char *tar_path, adli_buf *job, bool *yaml);

/* Unpacks everything below "image/" into directory, which must exist; empty, or else nothing in
 * it is overwritten (EINVAL). Files get mode 0644 or 0755 and the caller as their owner. limits
 * may be NULL. EINVAL names the entry that is not allowed, ECORRUPT a truncated or damaged
 * archive; what was unpacked before stays for the caller to remove. An archive without files
 * leaves the directory empty. Blocks for as long as the writing takes. */
ADL_MUST adl_status adli_image_unpack(const char *tar_path, const char *directory,
                                      const adli_image_limits *limits);

/* ---- directory -> image -> archive ---- */

typedef struct adli_image adli_image;

/* What an image says about how to run it. Lists end with NULL; borrowed from the image. */
typedef struct adli_image_config {
    const char *const *env;        /* "NAME=value" in the order of the file; each name once */
    const char *workdir;           /* absolute; NULL: the Dockerfile sets none */
    const char *const *entrypoint; /* NULL: none */
    const char *const *cmd;        /* NULL: none */
} adli_image_config;

/* The image that the Dockerfile makes of the files in directory. What a Dockerfile does to a
 * base image (FROM, RUN ...) cannot be done here: such lines are noted, not refused. Files that
 * .dockerignore names are left out. dockerfile: the path, or NULL: the whole directory becomes
 * /workspace, which is also the working directory. EINVAL names file and line. *out is freed
 * with adli_image_free. The files themselves are read when the image is packed. */
ADL_MUST adl_status adli_image_build(const char *directory, const char *dockerfile,
                                     adli_image **out);
void adli_image_free(adli_image *image);

const adli_image_config *adli_image_get_config(const adli_image *image);
/* Notes for the user, one line each: what was ignored, and where. NULL after the last. */
const char *adli_image_note(const adli_image *image, int index);
int64_t adli_image_bytes(const adli_image *image);
int adli_image_files(const adli_image *image);
/* The path in the image ("root/hello_world.py"; a directory ends with "/") of entry index in
 * order of name; NULL after the last. */
const char *adli_image_path(const adli_image *image, int index);
/* Its size in bytes; 0 for a directory. */
int64_t adli_image_size(const adli_image *image, int index);

/* Writes the archive of a job: its job file (job.yaml or job.json) and the image (may be NULL)
 * to the descriptor. The same files make the same bytes. EIO names the file that could not be
 * read or changed its size meanwhile. */
ADL_MUST adl_status adli_image_pack(const adli_image *image, const char *job, size_t job_length,
                                    bool yaml, int fd);

#endif
