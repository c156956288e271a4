/* Configurations from arbitrary bytes: one that prints as a file which reads back the same, or an
 * error on one line. */
#include "config/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const adli_config *config)
{
    adli_config again;
    adli_buf one, two;
    adli_buf_init(&one, 1 << 24);
    adli_buf_init(&two, 1 << 24);
    if (adli_config_print(config, &one) != ADL_OK ||
        adli_config_parse("again", one.data, one.length, ADLI_DOC_YAML, &again) != ADL_OK ||
        adli_config_print(&again, &two) != ADL_OK || strcmp(one.data, two.data) != 0)
        abort();
    adli_config_fini(&again);
    adli_buf_fini(&one);
    adli_buf_fini(&two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_config config;
    if (memmem(data, size, "nodesFile", 9))
        return 0; /* would read whatever file it names */
    if (adli_config_parse("fuzz", (const char *)data, size, ADLI_DOC_YAML, &config) == ADL_OK)
        check_round_trip(&config);
    else if (strncmp(adl_error(), "fuzz:", 5) != 0 || strchr(adl_error(), '\n'))
        abort();
    adli_config_fini(&config);
    return 0;
}
