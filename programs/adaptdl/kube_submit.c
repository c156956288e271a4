#include "kube_submit.h"

#include "base/mem.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SOURCE_BYTES_MAX = 700000, SOURCE_FILES_MAX = 300 }; /* an object holds 1 MiB, in base64 */

static const char SOURCE_VOLUME[] = "adaptdl-source";

typedef struct dresser {
    cluster *k;
    json_t *job, *metadata, *pod, *container;
    const char *name;
} dresser;

static json_t *list_of(json_t *object, const char *field)
{
    json_t *list = json_object_get(object, field);
    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(object, field, list);
    }
    return list;
}

static bool has_named(const json_t *list, const char *field, const char *value)
{
    const json_t *item;
    size_t i;
    json_array_foreach((json_t *)list, i, item)
    {
        if (strcmp(text_of(item, field, ""), value) == 0)
            return true;
    }
    return false;
}

/* Unless the job has a mount there of its own. */
static bool add_mount(const dresser *d, const char *volume, const char *at, const char *below,
                      bool read_only)
{
    json_t *mounts = list_of(d->container, "volumeMounts");
    if (has_named(mounts, "mountPath", at))
        return false;
    json_t *mount = json_pack("{s:s,s:s}", "name", volume, "mountPath", at);
    if (below)
        json_object_set_new(mount, "subPath", json_string(below));
    if (read_only)
        json_object_set_new(mount, "readOnly", json_true());
    json_array_append_new(mounts, mount);
    return true;
}

/* Unless the job sets it. */
static void add_variable(const dresser *d, const char *name, const char *value)
{
    json_t *env = list_of(d->container, "env");
    if (!has_named(env, "name", name))
        json_array_insert_new(env, 0, json_pack("{s:s,s:s}", "name", name, "value", value));
}

static void add_claim_volume(const dresser *d, const char *volume, const char *claim)
{
    json_t *volumes = list_of(d->pod, "volumes");
    if (!has_named(volumes, "name", volume))
        json_array_append_new(volumes, json_pack("{s:s,s:{s:s}}", "name", volume,
                                                 "persistentVolumeClaim", "claimName", claim));
}

/* One claim for both directories; its name is filled in when the job is made. */
static void add_storage(const dresser *d, const kube_outfit *outfit)
{
    bool some = add_mount(d, KUBE_CLAIM_VOLUME, "/adaptdl/checkpoint", "checkpoint", false);
    some |= add_mount(d, KUBE_CLAIM_VOLUME, "/adaptdl/share", "share", false);
    add_variable(d, "ADAPTDL_CHECKPOINT_PATH", "/adaptdl/checkpoint");
    add_variable(d, "ADAPTDL_SHARE_PATH", "/adaptdl/share");
    if (!some)
        return;
    add_claim_volume(d, KUBE_CLAIM_VOLUME, "");
    json_t *notes = json_object_get(d->metadata, "annotations");
    if (!notes)
        json_object_set_new(d->metadata, "annotations", notes = json_object());
    if (outfit->size)
        json_object_set_new(notes, KUBE_CLAIM_SIZE, json_string(outfit->size));
    if (outfit->class)
        json_object_set_new(notes, KUBE_CLAIM_CLASS, json_string(outfit->class));
}

static int add_tensorboard(const dresser *d, const char *name)
{
    char claim[100], path[PATH_TEXT];
    json_t *there = NULL;
    snprintf(claim, sizeof claim, "adaptdl-tensorboard-%.63s", name);
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/persistentvolumeclaims/%s",
             text_of(d->metadata, "namespace", ""), claim);
    int status = kube_ask(d->k, "GET", path, NULL, NULL, 404, &there);
    if (status == EXIT_DONE && !there)
        status = problem(d->k->cli->command->name, EXIT_ABSENT,
                         "there is no claim %s in namespace %s for TensorBoard %s", claim,
                         text_of(d->metadata, "namespace", ""), name);
    json_decref(there);
    if (status != EXIT_DONE)
        return status;
    add_claim_volume(d, "adaptdl-tensorboard", claim);
    add_mount(d, "adaptdl-tensorboard", "/adaptdl/tensorboard", NULL, false);
    add_variable(d, "ADAPTDL_TENSORBOARD_LOGDIR", "/adaptdl/tensorboard");
    return EXIT_DONE;
}

/* ---- files beside a stock image ---- */

static char *encode(const char *data, size_t length)
{
    char *text = adli_calloc(length / 3 * 4 + 8, 1);
    if (text)
        EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)data, (int)length);
    return text;
}

/* One file of the archive: a key of the map, mounted where the image would have it. */
static int add_file(const dresser *d, struct archive *archive, struct archive_entry *entry,
                    json_t *data, json_t *items)
{
    const char *name = archive_entry_pathname(entry);
    size_t size = (size_t)archive_entry_size(entry), index = json_object_size(data);
    char key[32], at[4200];
    if (archive_entry_filetype(entry) != AE_IFREG || strncmp(name, "image/", 6) != 0)
        return EXIT_DONE;
    snprintf(key, sizeof key, "file-%zu", index);
    snprintf(at, sizeof at, "/%.4000s", name + 6);
    char *bytes = adli_calloc(size + 1, 1);
    bool read = bytes && archive_read_data(archive, bytes, size) == (la_ssize_t)size;
    char *text = read ? encode(bytes, size) : NULL;
    if (text) {
        json_object_set_new(data, key, json_string(text));
        json_array_append_new(items, json_pack("{s:s,s:s,s:i}", "key", key, "path", key, "mode",
                                               archive_entry_mode(entry) & 0100 ? 0755 : 0644));
        add_mount(d, SOURCE_VOLUME, at, key, true);
    }
    free(text);
    free(bytes);
    return text ? EXIT_DONE : problem("submit", EXIT_REFUSED, "%s cannot be packed", at);
}

static int read_files(const dresser *d, int fd, json_t *data, json_t *items)
{
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;
    int status = EXIT_DONE;
    if (!archive)
        return problem("submit", EXIT_REFUSED, "out of memory");
    archive_read_support_format_tar(archive);
    lseek(fd, 0, SEEK_SET);
    if (archive_read_open_fd(archive, fd, 16384) != ARCHIVE_OK)
        status = problem("submit", EXIT_REFUSED, "%s", archive_error_string(archive));
    while (status == EXIT_DONE && archive_read_next_header(archive, &entry) == ARCHIVE_OK)
        status = add_file(d, archive, entry, data, items);
    archive_read_free(archive);
    return status;
}

/* The map, for objects that are made with the job. */
static int add_source(const dresser *d, const adli_image *files, json_t *objects)
{
    int64_t bytes = adli_image_bytes(files);
    int count = adli_image_files(files);
    char map[100];
    if (bytes > SOURCE_BYTES_MAX || count > SOURCE_FILES_MAX)
        return problem("submit", EXIT_USAGE,
                       "%d files of %lld bytes are more than can be sent beside a job (%d files, "
                       "%d bytes): name what it does not need in .dockerignore, or put them into "
                       "an image (--image)",
                       count, (long long)bytes, SOURCE_FILES_MAX, SOURCE_BYTES_MAX);
    int fd = memfd_create("source", MFD_CLOEXEC);
    if (fd < 0 || adli_image_pack(files, "{}", 2, false, fd) != ADL_OK) {
        if (fd >= 0)
            close(fd);
        return report_error("submit", EXIT_USAGE);
    }
    json_t *data = json_object(), *items = json_array();
    int status = read_files(d, fd, data, items);
    close(fd);
    snprintf(map, sizeof map, "adaptdl-%s-source", d->name);
    if (status == EXIT_DONE && json_object_size(data) > 0) {
        json_array_append_new(list_of(d->pod, "volumes"),
                              json_pack("{s:s,s:{s:s,s:O}}", "name", SOURCE_VOLUME, "configMap",
                                        "name", map, "items", items));
        json_array_append_new(objects, json_pack("{s:s,s:s,s:{s:s},s:b,s:O}", "apiVersion", "v1",
                                                 "kind", "ConfigMap", "metadata", "name", map,
                                                 "immutable", 1, "binaryData", data));
    }
    json_decref(items);
    json_decref(data);
    return status;
}

/* ---- all together ---- */

static int dress(dresser *d, const kube_outfit *outfit, json_t *objects)
{
    json_t *spec = json_object_get(d->job, "spec");
    d->metadata = json_object_get(d->job, "metadata");
    d->name = text_of(d->metadata, "name", "");
    d->pod = json_object_get(json_object_get(spec, "template"), "spec");
    d->container = json_array_get(json_object_get(d->pod, "containers"), 0);
    if (!json_is_object(d->container))
        return problem("submit", EXIT_USAGE, "the job has no container");
    if (outfit->image)
        json_object_set_new(d->container, "image", json_string(outfit->image));
    if (!*text_of(d->container, "image", ""))
        return problem("submit", EXIT_USAGE,
                       "on Kubernetes a job needs an image: name one in the job file or with "
                       "--image, or have it built (from a Dockerfile)");
    if (outfit->pull_secret)
        json_array_append_new(list_of(d->pod, "imagePullSecrets"),
                              json_pack("{s:s}", "name", outfit->pull_secret));
    if (!outfit->no_storage)
        add_storage(d, outfit);
    int status = outfit->files ? add_source(d, outfit->files, objects) : EXIT_DONE;
    if (status == EXIT_DONE && outfit->tensorboard)
        status = add_tensorboard(d, outfit->tensorboard);
    return status;
}

int kube_submit(cluster *k, json_t *job, const kube_outfit *outfit, bool dry_run, json_t **out)
{
    dresser d = {.k = k, .job = job};
    json_t *objects = json_array();
    *out = NULL;
    int status = kube_settle(k, job);
    if (status == EXIT_DONE)
        status = dress(&d, outfit, objects);
    if (status == EXIT_DONE && outfit->pull_config && !dry_run)
        status = kube_registry_share(k, text_of(d.metadata, "namespace", ""), outfit->pull_config);
    if (status == EXIT_DONE)
        status = kube_create(k, job, objects, dry_run, out);
    json_decref(objects);
    return status;
}
