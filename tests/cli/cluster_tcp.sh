#!/usr/bin/env bash
# The commands over TCP with a token, and over TLS; the dashboard's address.
. "$(dirname "$0")/cluster.sh"
call up --listen none; check up_without_tcp 0 '^socket '
check no_dashboard_without_tcp 0 '^dashboard  none: '
cluster_stop
call up --nodes 1 --slots 1
check up_prints_the_dashboard 0 '^dashboard  http://127.0.0.1:[0-9]+/#token=[0-9a-f]{32,}$'
url=$(sed -n 's/^dashboard  \(.*\)\/#token.*/\1/p' "$tmp/out")
token=$(sed -n 's/^dashboard.*#token=//p' "$tmp/out")
job_file quick sh -c 'echo hello; echo x >"$ADAPTDL_SHARE_PATH/x"'
mkdir "$tmp/dir" && cp "$tmp/quick.yaml" "$tmp/dir/adaptdljob.yaml"
over_tcp() { # NAME: submit, logs, ls, cp, delete through $ADAPTDL_SERVER
    call submit --follow "$tmp/dir"; expect "${1}_submit" 0 <<<$'quick\nhello'
    call ls -o name; expect "${1}_ls" 0 <<<quick
    call cp quick:/adaptdl/share/x -; expect "${1}_cp" 0 <<<x
    call delete --wait quick; expect "${1}_delete" 0 <<<'default/quick deleted'
}
export ADAPTDL_SERVER=$url
call ls; check no_token 6 'ADAPTDL_TOKEN'
[ "$(wc -l <"$tmp/err")" -eq 1 ] || not_ok no_token "not one line"
export ADAPTDL_TOKEN=wrong
call ls; check a_wrong_token 6 'ADAPTDL_TOKEN'
export ADAPTDL_TOKEN=$token
over_tcp tcp
call down; check down_needs_the_socket 2 'a cluster on this machine only'
call submit --tensorboard x "$tmp/dir"; check tensorboard_needs_the_socket 2 'a cluster on this machine only'
unset ADAPTDL_SERVER ADAPTDL_TOKEN
cluster_stop

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -keyout "$tmp/key.pem" -out "$tmp/cert.pem" 2>/dev/null
printf 'listen: 127.0.0.1:0\ntls: {certificate: %s, key: %s}\n' "$tmp/cert.pem" "$tmp/key.pem" >"$tmp/config.yaml"
call up --config "$tmp/config.yaml"
check up_with_tls 0 '^dashboard  https://127.0.0.1:[0-9]+/#token='
ADAPTDL_SERVER=$(sed -n 's/^dashboard  \(.*\)\/#token.*/\1/p' "$tmp/out") ADAPTDL_TOKEN=$(cat "$tmp/s/token")
export ADAPTDL_SERVER ADAPTDL_TOKEN
call ls; check an_unknown_certificate 5 'certificate'
call ls --ca "$tmp/cert.pem"; check a_known_certificate 0
export ADAPTDL_CA=$tmp/cert.pem
over_tcp tls
unset ADAPTDL_SERVER ADAPTDL_TOKEN ADAPTDL_CA
finish
