/* The hello-world job in C: says hello and leaves a file in the directory that the job's
 * replicas share.
 *   cc hello_world.c -ladaptdl -o hello_world
 *   adaptdl submit . -f native.yaml -d Dockerfile.native
 *   adaptdl cp JOB:/adaptdl/share/foo.txt foo.txt */
#include <adaptdl/context.h>

#include <stdio.h>
#include <unistd.h>

int main(void)
{
    adl_env env;
    char path[4096];
    if (adl_env_read(&env) != ADL_OK) {
        fprintf(stderr, "hello_world: %s\n", adl_error());
        return 1;
    }
    printf("Hello, world!\n");
    fflush(stdout);
    snprintf(path, sizeof path, "%s/foo.txt", env.share_path ? env.share_path : ".");
    FILE *file = fopen(path, "w");
    if (!file || fputs("Hello, world!", file) < 0 || fclose(file) != 0) {
        perror(path);
        return 1;
    }
    sleep(100); /* so that there is time to look at it */
    return 0;
}
