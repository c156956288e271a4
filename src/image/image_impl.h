/* What an image is made of. */
#ifndef ADLI_IMAGE_IMPL_H
#define ADLI_IMAGE_IMPL_H

#include "image/image.h"
#include "image/tree.h"

struct adli_image {
    adli_tree tree;
    adli_words env, entrypoint, cmd, notes;
    char *workdir;
    adli_image_config config; /* points into the above */
};

#endif
