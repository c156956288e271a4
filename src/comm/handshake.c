#include "comm/handshake.h"

#include <string.h>

static const char server_label[] = "adaptdl server", client_label[] = "adaptdl client";
static const char up_label[] = "adaptdl up", down_label[] = "adaptdl down";

/* HMAC(secret, label HELLO nonce) */
static adl_status derive(const adli_handshake *state, const adli_identity *self, const char *label,
                         uint8_t out[ADLI_KEY_BYTES])
{
    memset(out, 0, ADLI_KEY_BYTES);
    if (!self->secret)
        return ADL_OK;
    adli_mac *mac;
    adl_status status = adli_mac_new(self->secret, self->secret_length, &mac);
    if (status != ADL_OK)
        return status;
    adli_part parts[] = {
        {label, strlen(label)},
        {state->hello, sizeof state->hello},
        {state->nonce, sizeof state->nonce},
    };
    status = adli_mac_of(mac, parts, 3, out);
    adli_mac_free(mac);
    return status;
}

static adl_status protect(const adli_handshake *state, const adli_identity *self, adli_conn *conn,
                          bool connecting)
{
    if (!self->secret)
        return ADL_OK;
    uint8_t up[ADLI_KEY_BYTES], down[ADLI_KEY_BYTES];
    adl_status status = derive(state, self, up_label, up);
    if (status == ADL_OK)
        status = derive(state, self, down_label, down);
    if (status == ADL_OK)
        status = adli_conn_protect(conn, connecting ? up : down, connecting ? down : up);
    adli_wipe(up, sizeof up);
    adli_wipe(down, sizeof down);
    return status;
}

adl_status adli_handshake_hello(adli_handshake *state, const adli_identity *self, adli_conn *conn)
{
    adli_hello hello = {
        .purpose = self->purpose,
        .keyed = self->secret != NULL,
        .rank = (uint32_t)self->rank,
        .replicas = (uint32_t)self->replicas,
        .generation = self->generation,
        .token = self->token,
    };
    adl_status status = adli_random(hello.nonce, sizeof hello.nonce);
    if (status != ADL_OK)
        return status;
    adli_hello_encode(&hello, state->hello);
    adli_part part = {state->hello, sizeof state->hello};
    return adli_conn_send(conn, ADLI_HELLO, &part, 1);
}

adl_status adli_handshake_prove(adli_handshake *state, const adli_identity *self, adli_conn *conn,
                                const adli_frame *challenge)
{
    if (challenge->length != ADLI_NONCE_BYTES + ADLI_KEY_BYTES)
        return adli_fail(ADL_ENET, "a malformed challenge of %zu bytes", challenge->length);
    memcpy(state->nonce, challenge->payload, ADLI_NONCE_BYTES);
    uint8_t proof[ADLI_KEY_BYTES];
    adl_status status = derive(state, self, server_label, proof);
    if (status != ADL_OK)
        return status;
    if (self->secret && !adli_mac_equal(proof, challenge->payload + ADLI_NONCE_BYTES))
        return adli_fail(ADL_EPEER, "authentication failed: its secret is not ours");
    status = derive(state, self, client_label, proof);
    if (status != ADL_OK)
        return status;
    adli_part part = {proof, sizeof proof};
    status = adli_conn_send(conn, ADLI_PROOF, &part, 1);
    return status == ADL_OK ? protect(state, self, conn, true) : status;
}

adl_status adli_handshake_challenge(adli_handshake *state, const adli_identity *self,
                                    adli_conn *conn, const adli_frame *frame)
{
    adli_hello hello;
    adl_status status = adli_hello_parse(frame->payload, frame->length, &hello);
    if (status != ADL_OK)
        return status;
    if (hello.keyed && !self->secret)
        return adli_fail(ADL_EPEER, "authentication failed: rank %d has no secret, the peer has",
                         self->rank);
    if (!hello.keyed && self->secret)
        return adli_fail(ADL_EPEER, "authentication failed: rank %d has a secret, the peer has not",
                         self->rank);
    memcpy(state->hello, frame->payload, sizeof state->hello);
    status = adli_random(state->nonce, sizeof state->nonce);
    uint8_t proof[ADLI_KEY_BYTES];
    if (status == ADL_OK)
        status = derive(state, self, server_label, proof);
    if (status != ADL_OK)
        return status;
    adli_part parts[] = {{state->nonce, sizeof state->nonce}, {proof, sizeof proof}};
    return adli_conn_send(conn, ADLI_CHALLENGE, parts, 2);
}

adl_status adli_handshake_check(adli_handshake *state, const adli_identity *self, adli_conn *conn,
                                const adli_frame *frame)
{
    uint8_t proof[ADLI_KEY_BYTES];
    adl_status status = derive(state, self, client_label, proof);
    if (status != ADL_OK)
        return status;
    if (frame->length != ADLI_KEY_BYTES || !adli_mac_equal(proof, frame->payload))
        return adli_fail(ADL_EPEER, "authentication failed: its secret is not ours");
    return protect(state, self, conn, false);
}
