#include "image/names.h"

#include <string.h>

static adl_status refuse(const char *name, const char *why)
{
    return adli_fail(ADL_EINVAL, "archive entry \"%.200s\": %s", name, why);
}

adl_status adli_image_name_check(const char *name)
{
    if (name[0] == '/')
        return refuse(name, "an absolute name is not allowed");
    if (strlen(name) > ADLI_PATH_MAX)
        return refuse(name, "the name is too long");
    int depth = 0;
    for (const char *part = name;; depth++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.'))
            return refuse(name, "an empty or \".\" component is not allowed");
        if (length == 2 && part[0] == '.' && part[1] == '.')
            return refuse(name, "\"..\" is not allowed");
        if (length > ADLI_PATH_PART_MAX)
            return refuse(name, "a component of the name is longer than 255 bytes");
        if (depth == ADLI_PATH_DEPTH_MAX)
            return refuse(name, "more than 64 directories deep");
        part += length;
        if (*part == '\0' || part[1] == '\0')
            return ADL_OK;
        part++;
    }
}
