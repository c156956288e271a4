/* A job file on its way to the cluster: what the command line and the image add to it. */
#ifndef ADAPTDL_SUBMIT_JOB_H
#define ADAPTDL_SUBMIT_JOB_H

#include "base/buf.h"
#include "doc/doc.h"
#include "image/image.h"
#include "job_text.h"

typedef struct job_edits {
    const char *name, *ns;   /* NULL: as in the file */
    const char *tensorboard; /* log directory; NULL: none */
    char *const *arguments;  /* [argument_count] replace the args of the container */
    int argument_count;
    const adli_image_config *image; /* NULL: none */
    job_wishes wishes;
} job_edits;

/* Checks the file, applies the edits and appends what is to be sent: the text itself when
 * nothing changes (*yaml tells its form), else JSON. source: the file's name; text: its bytes.
 * Notes for the user are handed to note, one line each. EINVAL names file, line and field. */
ADL_MUST adl_status job_prepare(const char *source, const char *text, size_t length,
                                const job_edits *edits, void (*note)(const char *line),
                                adli_buf *out, bool *yaml);

#endif
