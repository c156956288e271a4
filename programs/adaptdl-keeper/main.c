/* adaptdl-keeper: what stands between the scheduler and one replica; src/backend/keeper.h. */
#include "backend/local/keeper.h"

#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    adli_keeper keeper;
    if (adli_keeper_parse(argc, argv, &keeper) != ADL_OK) {
        fprintf(stderr, "%s\n", adl_error());
        return 2;
    }
    _exit(adli_keeper_run(&keeper)); /* at once: whoever saw the result expects it gone */
}
