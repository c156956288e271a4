/* Offers of another world, as bytes from rank 0 and as lines from a launcher: what is accepted makes sense, and
 * encodes to the same bytes again. */
#include "base/status.h"
#include "train/regroup.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const adli_world *world)
{
    if (world->replicas < 1 || world->nodes < 1 || world->nodes > world->replicas ||
        !world->master_addr[0])
        abort();
    for (int i = 0; i < world->replicas; i++)
        if (world->members[i] < 0 || adli_world_rank(world, world->members[i]) != i)
            abort();
}

static void read_line(const uint8_t *data, size_t size)
{
    adli_world world;
    char *line = calloc(size + 1, 1);
    if (!line)
        return;
    memcpy(line, data, size);
    if (adli_offer_read(line, &world) == ADL_OK) {
        check(&world);
        adli_world_fini(&world);
    }
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    adli_world world;
    size_t length;
    read_line(data, size);
    if (adli_offer_parse(data, size, &world) != ADL_OK)
        return 0;
    check(&world);
    uint8_t *again = adli_offer_encode(&world, &length);
    if (!again || length != size || memcmp(again, data, size) != 0)
        abort();
    free(again);
    adli_world_fini(&world);
    return 0;
}
