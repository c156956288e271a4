/* What writing and removing checkpoints share. */
#ifndef ADLI_CHECKPOINT_WRITE_H
#define ADLI_CHECKPOINT_WRITE_H

#include "train/checkpoint_dir.h"

/* Directories under this prefix are nobody's once their writer is gone. The format takes the name of
 * the checkpoint that they are to become, or were. */
#define ADLI_CKPT_TEMPORARY        ".tmp-checkpoint-"
#define ADLI_CKPT_TEMPORARY_FORMAT ".tmp-%s"

/* Removes a directory of plain files; 0, or -1 with errno. Removes as much as it can. */
int adli_ckpt_remove_tree(const adli_ckpt_io *io, int dir, const char *name);

/* Removes what is beyond plan->keep_last, and what is damaged. A failure becomes out->warning. */
void adli_ckpt_prune(const adli_ckpt_plan *plan, int dir, adli_ckpt_outcome *out);

#endif
