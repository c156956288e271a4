#include "base/utf8.h"

#include <string.h>

size_t adli_utf8_decode(const char *text, size_t left, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    if (left == 0)
        return 0;
    size_t length = at[0] < 0x80             ? 1
                    : (at[0] & 0xe0) == 0xc0 ? 2
                    : (at[0] & 0xf0) == 0xe0 ? 3
                    : (at[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    uint32_t value = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) /* also stops at a NUL */
            return 0;
        value = value << 6 | (at[i] & 0x3fu);
    }
    if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 0;
    if (code)
        *code = value;
    return length;
}

bool adli_utf8_valid(const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t length = adli_utf8_decode(text, left, NULL);
        if (length == 0)
            return false;
        text += length;
        left -= length;
    }
    return true;
}
