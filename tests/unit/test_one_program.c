/* The scheduler's modules and the runtime's in one program, as an embedder would have them: no function of one
 * takes the place of another's. tools/check-symbols looks for such pairs; this is the one there was. */
#include "train_replicas.h"

#include "store/store.h"

TEST(a_store_and_a_training_context_in_one_program)
{
    char *directory = adlt_tempdir();
    char path[128];
    adli_store *store = NULL;
    adl_context *ctx = NULL;
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    snprintf(path, sizeof path, "%s/jobs.db", directory);
    REQUIRE_OK(adli_store_open(path, &store));
    env.checkpoint_path = directory;
    options.env = &env;
    options.log = NULL;
    options.handle_signals = false;
    REQUIRE_OK(adl_init(&options, &ctx));
    CHECK_INT(adl_finish(ctx), 0);
    adli_store_close(store);
    adlt_tempdir_remove(directory);
}
