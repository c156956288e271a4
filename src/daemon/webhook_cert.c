/* A certificate of our own. It is its own authority: whoever has it in a bundle trusts it and nothing else. */
#include "daemon/webhook.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { HOST_MAX = 253, DAY_S = 86400 };

static bool add(X509 *certificate, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool fine = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return fine;
}

/* Clients tell one certificate of an issuer from another by its number. */
static bool number(X509 *certificate)
{
    unsigned char bytes[16];
    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return false;
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and of full length */
    BIGNUM *value = BN_bin2bn(bytes, sizeof bytes, NULL);
    bool fine = value && BN_to_ASN1_INTEGER(value, X509_get_serialNumber(certificate));
    BN_free(value);
    return fine;
}

static bool fill(X509 *certificate, EVP_PKEY *key, const char *host, double life_s)
{
    char names[HOST_MAX + 8];
    unsigned char address[16];
    bool ip = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    time_t now = time(NULL);
    snprintf(names, sizeof names, "%s:%s", ip ? "IP" : "DNS", host);
    X509_NAME *subject = X509_get_subject_name(certificate);
    return X509_set_version(certificate, 2) == 1 && number(certificate) &&
           X509_time_adj_ex(X509_getm_notBefore(certificate), -1, 0, &now) &&
           X509_time_adj_ex(X509_getm_notAfter(certificate), (int)(life_s / DAY_S),
                            (long)life_s % DAY_S, &now) &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                      (const unsigned char *)"adaptdl-sched", -1, -1, 0) == 1 &&
           X509_set_issuer_name(certificate, subject) == 1 &&
           X509_set_pubkey(certificate, key) == 1 &&
           add(certificate, NID_subject_alt_name, names) &&
           add(certificate, NID_basic_constraints, "critical,CA:TRUE") &&
           add(certificate, NID_key_usage, "critical,digitalSignature,keyCertSign") &&
           add(certificate, NID_ext_key_usage, "serverAuth") &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static adl_status take(BIO *bio, adli_buf *out)
{
    char *data;
    long length = BIO_get_mem_data(bio, &data);
    adli_buf_append(out, data, length > 0 ? (size_t)length : 0);
    return adli_buf_check(out);
}

adl_status adli_webhook_certificate(const char *host, double life_s, adli_buf *certificate,
                                    adli_buf *key)
{
    /* the text becomes part of a configuration, where a comma begins another name */
    if (!*host || strlen(host) > HOST_MAX ||
        host[strspn(host, "abcdefghijklmnopqrstuvwxyz"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                          "0123456789-.:")])
        return adli_fail(ADL_EINVAL, "\"%.80s\" is no name of a host", host);
    X509 *x509 = X509_new();
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    BIO *public = BIO_new(BIO_s_mem()), *private = BIO_new(BIO_s_secmem());
    adl_status status = ADL_OK;
    if (!x509 || !pair || !public || !private || !fill(x509, pair, host, life_s) ||
        PEM_write_bio_X509(public, x509) != 1 ||
        PEM_write_bio_PrivateKey(private, pair, NULL, NULL, 0, NULL, NULL) != 1)
        status = adli_fail(ADL_EIO, "no certificate could be made for %s", host);
    if (status == ADL_OK)
        status = take(public, certificate);
    if (status == ADL_OK)
        status = take(private, key);
    BIO_free(private);
    BIO_free(public);
    EVP_PKEY_free(pair);
    X509_free(x509);
    return status;
}
