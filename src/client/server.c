#include "client/server.h"

#include "base/buf.h"
#include "base/dirs.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { PATH_BYTES = 4096 };

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static adl_status use_socket(adli_server *server, const char *path)
{
    if (!*path)
        return adli_fail(ADL_EINVAL, "server \"unix:\": no path");
    adl_status status = adli_absolute(path, &server->socket_path);
    if (status != ADL_OK)
        return status;
    size_t room = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    if (strlen(server->socket_path) > room)
        return adli_fail(ADL_EINVAL,
                         "socket %s: the path is longer than %zu bytes; choose a shorter state "
                         "directory (--state)",
                         server->socket_path, room);
    server->url = adli_strdup("http://localhost");
    return server->url ? ADL_OK : adli_fail_memory("server");
}

static adl_status use_url(adli_server *server, const char *address)
{
    const char *host = strstr(address, "://") + 3;
    size_t length = strlen(address);
    if (!*host || *host == '/' || strpbrk(host, " ?#@\\\"<>"))
        return adli_fail(ADL_EINVAL, "server \"%.200s\": expected http://HOST:PORT", address);
    while (address[length - 1] == '/')
        length--;
    server->url = adli_memdup(address, length + 1, 1);
    if (!server->url)
        return adli_fail_memory("server");
    server->url[length] = '\0';
    return ADL_OK;
}

static adl_status use_address(adli_server *server, const char *address, const char *state)
{
    if (address && strncmp(address, "unix:", 5) == 0)
        return use_socket(server, address + 5);
    if (address && (strncmp(address, "http://", 7) == 0 || strncmp(address, "https://", 8) == 0))
        return use_url(server, address);
    if (address)
        return adli_fail(ADL_EINVAL,
                         "server \"%.200s\": expected unix:PATH, http://HOST:PORT or "
                         "https://HOST:PORT",
                         address);
    char *directory;
    adl_status status = adli_state_dir(state, &directory);
    if (status != ADL_OK)
        return status;
    adli_buf path;
    adli_buf_init(&path, PATH_BYTES + 32);
    adli_buf_printf(&path, "%s/adaptdl.sock", directory);
    status = adli_buf_check(&path);
    if (status == ADL_OK)
        status = use_socket(server, path.data);
    adli_buf_fini(&path);
    free(directory);
    return status;
}

adl_status adli_server_init(adli_server *out, const char *address, const char *state,
                            const char *ca_file)
{
    *out = (adli_server){0};
    if (!address && !(state && *state)) /* a directory that was named wins over the environment */
        address = variable("ADAPTDL_SERVER");
    if (!ca_file)
        ca_file = variable("ADAPTDL_CA");
    const char *token = variable("ADAPTDL_TOKEN");
    adl_status status = use_address(out, address, state);
    if (status == ADL_OK && token && strpbrk(token, "\r\n"))
        status = adli_fail(ADL_EINVAL, "ADAPTDL_TOKEN: must be one line");
    if (status == ADL_OK && token && !(out->token = adli_strdup(token)))
        status = adli_fail_memory("token");
    if (status == ADL_OK && ca_file && !(out->ca_file = adli_strdup(ca_file)))
        status = adli_fail_memory("path");
    if (status != ADL_OK)
        adli_server_fini(out);
    return status;
}

void adli_server_fini(adli_server *server)
{
    char *const texts[] = {server->url, server->socket_path, server->token, server->ca_file,
                           server->ca,  server->certificate, server->key,   server->own_token};
    for (size_t i = 0; i < ADLI_COUNT(texts); i++)
        free(texts[i]);
    *server = (adli_server){0};
}
