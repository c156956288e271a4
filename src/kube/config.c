#include "kube/config.h"

#include "base/file.h"
#include "base/mem.h"
#include "doc/doc.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 20, PATH_SIZE = 4096, EXEC_WORDS_MAX = 1000 };

static const char account[] = "/var/run/secrets/kubernetes.io/serviceaccount";

static void free_words(char **words)
{
    for (char **word = words; word && *word; word++)
        free(*word);
    free(words);
}

void adli_kube_config_fini(adli_kube_config *config)
{
    char **const texts[] = {
        &config->server,     &config->ca, &config->certificate, &config->key,    &config->token,
        &config->token_file, &config->ns, &config->hint,        &config->source, &config->context};
    for (size_t i = 0; i < ADLI_COUNT(texts); i++)
        free(*texts[i]);
    free_words(config->exec);
    free_words(config->exec_env);
    *config = (adli_kube_config){0};
}

static adl_status keep(char **slot, const char *text)
{
    char *copy = adli_strdup(text);
    if (!copy)
        return adli_fail_memory("kubeconfig");
    free(*slot);
    *slot = copy;
    return ADL_OK;
}

/* What nobody set is "". */
static adl_status settle(adli_kube_config *config)
{
    char **const texts[] = {&config->server, &config->ca,     &config->certificate,
                            &config->key,    &config->token,  &config->token_file,
                            &config->hint,   &config->source, &config->context};
    adl_status status = ADL_OK;
    for (size_t i = 0; i < ADLI_COUNT(texts) && status == ADL_OK; i++)
        if (!*texts[i])
            status = keep(texts[i], "");
    if (status == ADL_OK && (!config->ns || !*config->ns))
        status = keep(&config->ns, "default");
    size_t length = status == ADL_OK ? strlen(config->server) : 0;
    while (length > 0 && config->server[length - 1] == '/')
        config->server[--length] = 0;
    if (status == ADL_OK && strncmp(config->server, "https://", 8) != 0 &&
        strncmp(config->server, "http://", 7) != 0)
        status =
            adli_fail(ADL_EINVAL, "server \"%.200s\": expected https://HOST:PORT", config->server);
    if (status == ADL_OK && strpbrk(config->token, "\r\n"))
        status = adli_fail(ADL_EINVAL, "the token has more than one line");
    if (status == ADL_OK && !*config->certificate != !*config->key)
        status = adli_fail(ADL_EINVAL, "a client certificate and its key are needed together");
    return status;
}

static adl_status read_text(const char *path, char **out)
{
    adli_buf text;
    adli_buf_init(&text, FILE_MAX);
    adl_status status = adli_file_read(path, &text);
    if (status == ADL_OK)
        status = keep(out, text.data ? text.data : "");
    adli_buf_fini(&text);
    return status;
}

/* ---- a kubeconfig ---- */

static adl_status decode(const adli_field *field, const char *text, char **out)
{
    size_t length = strlen(text);
    char *clear = length % 4 == 0 ? adli_calloc(length / 4 * 3 + 1, 1) : NULL;
    int got =
        clear ? EVP_DecodeBlock((unsigned char *)clear, (const unsigned char *)text, (int)length)
              : -1;
    if (got < 0 || strlen(clear) == 0) {
        free(clear);
        return adli_field_fail(field, "is not base64");
    }
    free(*out);
    *out = clear;
    return ADL_OK;
}

/* NAME-data, or the file that NAME says. */
static adl_status read_pem(const adli_field *object, const char *name, const char *directory,
                           char **out)
{
    char data_name[64], path[PATH_SIZE];
    const char *text;
    snprintf(data_name, sizeof data_name, "%s-data", name);
    adli_field data = adli_field_get(object, data_name), file = adli_field_get(object, name);
    if (adli_field_given(&data)) {
        adl_status status = adli_field_text(&data, FILE_MAX, &text);
        return status == ADL_OK ? decode(&data, text, out) : status;
    }
    if (!adli_field_given(&file))
        return ADL_OK;
    adl_status status = adli_field_text(&file, 2048, &text);
    if (status == ADL_OK) {
        snprintf(path, sizeof path, "%s%s%s", *text == '/' ? "" : directory,
                 *text == '/' ? "" : "/", text);
        status = read_text(path, out);
    }
    return status;
}

static adl_status read_optional(const adli_field *object, const char *name, char **out)
{
    const char *text;
    adli_field field = adli_field_get(object, name);
    if (!adli_field_given(&field))
        return ADL_OK;
    adl_status status = adli_field_text(&field, 64 << 10, &text);
    return status == ADL_OK ? keep(out, text) : status;
}

static adl_status read_cluster(const adli_field *cluster, const char *directory,
                               adli_kube_config *out)
{
    adli_field skip = adli_field_get(cluster, "insecure-skip-tls-verify"),
               named = adli_field_get(cluster, "tls-server-name");
    adl_status status = read_optional(cluster, "server", &out->server);
    if (status == ADL_OK && adli_field_given(&named))
        status = adli_field_fail(&named, "is not supported: the server is known by its address");
    if (status == ADL_OK && adli_field_given(&skip))
        status = adli_field_bool(&skip, &out->insecure);
    return status == ADL_OK ? read_pem(cluster, "certificate-authority", directory, &out->ca)
                            : status;
}

/* "NAME=VALUE" of {name, value}, or the text itself. */
static adl_status read_word(const adli_field *item, bool pair, char **out)
{
    const char *name, *value;
    adli_field part = pair ? adli_field_get(item, "name") : *item;
    adl_status status = adli_field_text(&part, FILE_MAX, &name);
    if (status != ADL_OK || !pair)
        return status == ADL_OK ? keep(out, name) : status;
    part = adli_field_get(item, "value");
    status = adli_field_text(&part, FILE_MAX, &value);
    if (status != ADL_OK)
        return status;
    size_t size = strlen(name) + strlen(value) + 2;
    *out = adli_calloc(size, 1);
    if (*out)
        snprintf(*out, size, "%s=%s", name, value);
    return *out ? ADL_OK : adli_fail_memory("kubeconfig");
}

/* The items of a list behind `first` (NULL: nothing), with NULL at the end. */
static adl_status read_words(const adli_field *list, bool pairs, const char *first, char ***out)
{
    size_t count = adli_field_given(list) ? adli_field_count(list) : 0, used = 0;
    adl_status status = ADL_OK;
    if (count > EXEC_WORDS_MAX)
        return adli_field_fail(list, "has more than %d items", EXEC_WORDS_MAX);
    *out = adli_calloc(count + 2, sizeof(char *));
    if (!*out)
        return adli_fail_memory("kubeconfig");
    if (first)
        status = keep(&(*out)[used++], first);
    for (size_t i = 0; i < count && status == ADL_OK; i++) {
        adli_field item = adli_field_at(list, i);
        status = read_word(&item, pairs, &(*out)[used++]);
    }
    return status;
}

/* A program that logs in. One with a slash in its name is looked for beside the file. */
static adl_status read_exec(const adli_field *exec, const char *directory, adli_kube_config *out)
{
    const char *command, *version;
    char path[PATH_SIZE];
    adli_field named = adli_field_get(exec, "command"), api = adli_field_get(exec, "apiVersion"),
               args = adli_field_get(exec, "args"), env = adli_field_get(exec, "env");
    adl_status status = adli_field_text(&named, 2048, &command);
    if (status == ADL_OK && !*command)
        status = adli_field_fail(&named, "is empty");
    if (status == ADL_OK)
        status = adli_field_text(&api, 100, &version);
    if (status == ADL_OK && strcmp(version, "client.authentication.k8s.io/v1") != 0 &&
        strcmp(version, "client.authentication.k8s.io/v1beta1") != 0)
        status = adli_field_fail(&api, "must be client.authentication.k8s.io/v1 or /v1beta1");
    if (status != ADL_OK)
        return status;
    bool beside = strchr(command, '/') && *command != '/';
    snprintf(path, sizeof path, "%s%s%s", beside ? directory : "", beside ? "/" : "", command);
    status = read_words(&args, false, path, &out->exec);
    if (status == ADL_OK)
        status = read_words(&env, true, NULL, &out->exec_env);
    return status == ADL_OK ? read_optional(exec, "installHint", &out->hint) : status;
}

static adl_status read_user(const adli_field *user, const char *directory, adli_kube_config *out)
{
    static const char *const others[] = {"auth-provider", "username"};
    adl_status status = read_pem(user, "client-certificate", directory, &out->certificate);
    if (status == ADL_OK)
        status = read_pem(user, "client-key", directory, &out->key);
    if (status == ADL_OK)
        status = read_optional(user, "token", &out->token);
    if (status == ADL_OK)
        status = read_optional(user, "tokenFile", &out->token_file);
    bool known = out->certificate || out->token || out->token_file;
    adli_field exec = adli_field_get(user, "exec");
    if (status == ADL_OK && !known && adli_field_given(&exec)) {
        status = read_exec(&exec, directory, out);
        known = true;
    }
    for (size_t i = 0; i < ADLI_COUNT(others) && status == ADL_OK && !known; i++) {
        adli_field other = adli_field_get(user, others[i]);
        if (adli_field_given(&other))
            status = adli_field_fail(&other, "this way of logging in is not supported: use a "
                                             "client certificate, a token or exec");
    }
    return status;
}

/* The entry of that name in a list of {name, KIND}; *out is its KIND. */
static adl_status find_named(const adli_field *list, const char *name, const char *kind,
                             adli_field *entry, adli_field *out)
{
    for (size_t i = 0; i < adli_field_count(list); i++) {
        const char *text;
        *entry = adli_field_at(list, i);
        adli_field called = adli_field_get(entry, "name");
        if (adli_field_text(&called, 1024, &text) == ADL_OK && strcmp(text, name) == 0) {
            *out = adli_field_get(entry, kind);
            return adli_field_object(out);
        }
    }
    return adli_field_fail(list, "there is no %s \"%.100s\"", kind, name);
}

static adl_status read_context(const adli_field *root, const char *directory, const char *name,
                               adli_kube_config *out)
{
    adli_field contexts = adli_field_get(root, "contexts"), context, entry, other, part;
    adli_field clusters = adli_field_get(root, "clusters"), users = adli_field_get(root, "users");
    const char *cluster, *user;
    adl_status status = find_named(&contexts, name, "context", &entry, &context);
    if (status == ADL_OK)
        status = read_optional(&context, "namespace", &out->ns);
    if (status == ADL_OK) {
        part = adli_field_get(&context, "cluster");
        status = adli_field_text(&part, 1024, &cluster);
    }
    if (status == ADL_OK)
        status = find_named(&clusters, cluster, "cluster", &other, &part);
    if (status == ADL_OK)
        status = read_cluster(&part, directory, out);
    adli_field who = status == ADL_OK ? adli_field_get(&context, "user") : (adli_field){0};
    if (status != ADL_OK || !adli_field_given(&who))
        return status;
    status = adli_field_text(&who, 1024, &user);
    if (status == ADL_OK)
        status = find_named(&users, user, "user", &other, &part);
    return status == ADL_OK ? read_user(&part, directory, out) : status;
}

adl_status adli_kube_config_parse(const char *source, const char *directory, const char *text,
                                  size_t length, const char *context, adli_kube_config *out)
{
    adli_doc doc;
    *out = (adli_kube_config){0};
    adl_status status = adli_doc_parse(source, text, length, ADLI_DOC_YAML, &doc);
    if (status != ADL_OK)
        return status;
    adli_field root = adli_doc_root(&doc), current = adli_field_get(&root, "current-context");
    const char *name = context;
    if (!name || !*name)
        status = adli_field_text(&current, 1024, &name);
    if (status == ADL_OK)
        status = read_context(&root, directory, name, out);
    if (status == ADL_OK)
        status = keep(&out->source, source);
    if (status == ADL_OK)
        status = keep(&out->context, name);
    if (status == ADL_OK) {
        status = settle(out);
        if (status != ADL_OK)
            status = adli_wrap(status, "%s", source);
    }
    adli_doc_fini(&doc);
    if (status != ADL_OK)
        adli_kube_config_fini(out);
    return status;
}

static adl_status load(const char *path, const char *context, adli_kube_config *out)
{
    char directory[PATH_SIZE];
    adli_buf text;
    adli_buf_init(&text, FILE_MAX);
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    strcpy(slash ? slash : directory, slash ? "" : ".");
    adl_status status = adli_file_read(path, &text);
    if (status == ADL_OK)
        status = adli_kube_config_parse(path, directory, text.data ? text.data : "", text.length,
                                        context, out);
    if (text.data)
        explicit_bzero(text.data, text.length);
    adli_buf_fini(&text);
    return status;
}

/* ---- where from ---- */

adl_status adli_kube_config_in_cluster(const char *directory, adli_kube_config *out)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    char text[PATH_SIZE];
    bool six = host && strchr(host, ':');
    *out = (adli_kube_config){0};
    snprintf(text, sizeof text, "https://%s%s%s:%s", six ? "[" : "", host ? host : "",
             six ? "]" : "", port && *port ? port : "443");
    adl_status status = host && *host ? keep(&out->server, text)
                                      : adli_fail(ADL_ENOENT, "KUBERNETES_SERVICE_HOST is not set");
    if (status == ADL_OK)
        status = keep(&out->source, directory);
    snprintf(text, sizeof text, "%s/token", directory);
    if (status == ADL_OK)
        status = keep(&out->token_file, text);
    snprintf(text, sizeof text, "%s/ca.crt", directory);
    if (status == ADL_OK)
        status = read_text(text, &out->ca);
    snprintf(text, sizeof text, "%s/namespace", directory);
    if (status == ADL_OK && access(text, R_OK) == 0)
        status = read_text(text, &out->ns);
    if (out->ns)
        out->ns[strcspn(out->ns, " \r\n")] = 0;
    if (status == ADL_OK)
        status = settle(out);
    if (status != ADL_OK)
        adli_kube_config_fini(out);
    return status;
}

adl_status adli_kube_config_find(const char *path, const char *context, adli_kube_config *out)
{
    char one[PATH_SIZE];
    const char *list = getenv("KUBECONFIG"), *home = getenv("HOME");
    *out = (adli_kube_config){0};
    if (path && *path)
        return load(path, context, out);
    while (list && *list) {
        size_t length = strcspn(list, ":");
        snprintf(one, sizeof one, "%.*s", (int)length, list);
        if (access(one, R_OK) == 0)
            return load(one, context, out);
        list += length + (list[length] == ':');
    }
    if (getenv("KUBERNETES_SERVICE_HOST") && access(account, R_OK) == 0)
        return adli_kube_config_in_cluster(account, out);
    snprintf(one, sizeof one, "%s/.kube/config", home ? home : "");
    if (home && access(one, R_OK) == 0)
        return load(one, context, out);
    return adli_fail(ADL_ENOENT,
                     "no cluster: set KUBECONFIG, or run in a pod with a service account");
}
