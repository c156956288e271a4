/* Which names a file of an image may have, whoever proposes it. */
#ifndef ADLI_IMAGE_NAMES_H
#define ADLI_IMAGE_NAMES_H

#include "base/status.h"

enum { ADLI_PATH_MAX = 4000, ADLI_PATH_PART_MAX = 255, ADLI_PATH_DEPTH_MAX = 64 };

/* A relative path of ordinary components, none of them "", "." or ".."; one "/" may end it. EINVAL
 * names the path. */
ADL_MUST adl_status adli_image_name_check(const char *name);

#endif
