/* The other side of exec for tests: a WebSocket that a script of the test serves. */
#ifndef ADLT_WS_SERVER_H
#define ADLT_WS_SERVER_H

#include "kube_server.h"

#include "kube/websocket.h"

/* Answers the handshake; protocol: the subprotocol that is chosen. */
static inline void adlt_ws_accept(adlt_kube_request *request, const char *protocol)
{
    char accept[ADLI_WS_ACCEPT], key[ADLI_WS_KEY] = "", head[400];
    snprintf(key, sizeof key, "%.24s", request->ws_key);
    adli_ws_accept(key, accept);
    snprintf(head, sizeof head,
             "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
             "Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n",
             accept, protocol);
    adlt_kube_send(request, head);
    request->hang_up = true; /* no HTTP any more */
}

/* A frame as servers send it. */
static inline void adlt_ws_frame(adlt_kube_request *request, int first, const char *data,
                                 size_t length)
{
    unsigned char head[10] = {(unsigned char)first};
    size_t used = 2;
    int wide = length < 126 ? 0 : length < 65536 ? 2 : 8;
    head[1] = (unsigned char)(wide == 0 ? length : wide == 2 ? 126 : 127);
    for (int i = wide - 1; i >= 0; i--)
        head[used++] = (unsigned char)(length >> (8 * i));
    if (send(request->fd, head, used, MSG_NOSIGNAL) < 0)
        return;
    for (ssize_t sent; length > 0; data += sent, length -= (size_t)sent)
        if ((sent = send(request->fd, data, length, MSG_NOSIGNAL)) <= 0)
            return;
}

/* A message on a channel of exec. */
static inline void adlt_ws_channel(adlt_kube_request *request, int channel, const char *data,
                                   size_t length)
{
    char *message = malloc(length + 1);
    message[0] = (char)channel;
    memcpy(message + 1, data, length);
    adlt_ws_frame(request, 0x80 | ADLI_WS_BINARY, message, length + 1);
    free(message);
}

static inline void adlt_ws_result(adlt_kube_request *request, int exit_status)
{
    char text[300];
    if (exit_status == 0)
        snprintf(text, sizeof text, "{\"status\":\"Success\"}");
    else
        snprintf(text, sizeof text,
                 "{\"status\":\"Failure\",\"message\":\"command terminated\",\"reason\":"
                 "\"NonZeroExitCode\",\"details\":{\"causes\":[{\"reason\":\"ExitCode\","
                 "\"message\":\"%d\"}]}}",
                 exit_status);
    adlt_ws_channel(request, 3, text, strlen(text));
    adlt_ws_frame(request, 0x80 | ADLI_WS_CLOSE, "\x03\xe8", 2);
}

/* The next message of the client, unmasked; its length, -1 when it is gone. */
static inline ssize_t adlt_ws_read(adlt_kube_request *request, char *out, size_t size)
{
    unsigned char head[6];
    if (recv(request->fd, head, 6, MSG_WAITALL) != 6 || !(head[1] & 0x80))
        return -1;
    size_t length = head[1] & 0x7f; /* tests send little */
    if (length >= 126 || length >= size ||
        (length && recv(request->fd, out, length, MSG_WAITALL) != (ssize_t)length))
        return -1;
    for (size_t i = 0; i < length; i++)
        out[i] = (char)(out[i] ^ head[2 + i % 4]);
    out[length] = '\0';
    return (ssize_t)length;
}

#endif
