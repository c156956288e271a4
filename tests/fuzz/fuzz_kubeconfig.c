/* Any bytes as a kubeconfig: refused with a text, or a config whose fields are all there. */
#include "kube/config.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_kube_config config;
    if (adli_kube_config_parse("config", "/nowhere", (const char *)data, size, "", &config) ==
        ADL_OK) {
        if (strncmp(config.server, "http", 4) != 0 || !*config.ns ||
            !*config.certificate != !*config.key || strpbrk(config.token, "\r\n"))
            abort();
    } else if (adl_error()[0] == '\0')
        abort();
    adli_kube_config_fini(&config);
    return 0;
}
