#!/usr/bin/env bash
# --help, the man page, the completions and docs/cli.md tell the same story.
. "$(dirname "$0")/cluster.sh"
root=$(cd "$(dirname "$0")/../.." && pwd)
call --help
commands=$(sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$tmp/out")
[ "$(wc -w <<<"$commands")" -ge 23 ] && ok commands_are_listed || not_ok commands_are_listed "only $commands"
sed -n '/^Exit status:/,$s/^ *\([0-9]*\)  \(.*\)/\1 \2/p' "$tmp/out" >"$tmp/exits"
adaptdl help --man >"$tmp/adaptdl.1"
MANWIDTH=2000 man --warnings -E UTF-8 -l "$tmp/adaptdl.1" >"$tmp/man.txt" 2>"$tmp/err"
if [ $? -eq 0 ] && [ ! -s "$tmp/err" ]; then ok man_has_no_warnings; else not_ok man_has_no_warnings "$(head -n 3 "$tmp/err")"; fi
sed -i 's/.\x08//g; s/\x1b\[[0-9;]*m//g' "$tmp/man.txt"
adaptdl completion bash >"$tmp/bash"
adaptdl completion zsh >"$tmp/zsh"
adaptdl completion fish >"$tmp/fish"
bash -n "$tmp/bash" && ok bash_reads_its_completion || not_ok bash_reads_its_completion "syntax"
if command -v zsh >/dev/null; then
    said=$(HOME=$tmp zsh -fc "autoload -Uz compinit && compinit -u -D && source '$tmp/zsh' && echo \$_comps[adaptdl]" 2>&1)
    [ "$said" = _adaptdl ] && ok zsh_reads_its_completion || not_ok zsh_reads_its_completion "$said"
else
    echo "skip - zsh_reads_its_completion: zsh is not installed"
fi
if command -v fish >/dev/null; then
    said=$(HOME=$tmp fish --no-config -c "source '$tmp/fish'; complete -C 'adaptdl sub'" 2>&1)
    grep -q '^submit' <<<"$said" && ok fish_reads_its_completion || not_ok fish_reads_its_completion "$said"
else
    echo "skip - fish_reads_its_completion: fish is not installed"
fi
# shellcheck disable=SC1091
source "$tmp/bash"
# complete WORDS...: what bash would offer for the last word
complete_line() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _adaptdl "$bin/adaptdl"; printf '%s\n' "${COMPREPLY[@]}"; }

options=0
for command in $commands; do
    call "$command" --help
    [ $rc -eq 0 ] && grep -q "^Usage: adaptdl $command" "$tmp/out" || { not_ok "help_of_$command" "exit $rc"; continue; }
    cp "$tmp/out" "$tmp/help"
    call help "$command"
    cmp -s "$tmp/help" "$tmp/out" || not_ok "help_$command" "differs from $command --help"
    grep -qE "^### ($command|.*\b$command\b)" "$root/docs/cli.md" || not_ok "docs_of_$command" "docs/cli.md has no section on it"
    sed -n "/^   $command\$/,/^   [a-z]*\$/p" "$tmp/man.txt" >"$tmp/section"
    sed -n "/^        $command)\$/,/ ;;\$/p" "$tmp/zsh" >"$tmp/zsh-section"
    complete_line adaptdl "$command" -- >"$tmp/words"
    complete_line adaptdl "$command" - >>"$tmp/words"
    for option in $(sed -nE 's/^  (-[a-zA-Z]), (--[a-z-]+).*/\1 \2/p; s/^  (--[a-z-]+).*/\1/p' "$tmp/help"); do
        options=$((options + 1))
        grep -qE -- "^ +(-[a-zA-Z], )?${option}( |,|\$)|^ +${option}," "$tmp/section" || not_ok "man_$command" "lacks $option"
        grep -qxF -- "$option" "$tmp/words" || not_ok "bash_$command" "lacks $option"
        grep -qF -- "'*$option[" "$tmp/zsh-section" || not_ok "zsh_$command" "lacks $option"
        case $option in --*) flag="-l ${option#--}" ;; *) flag="-s ${option#-}" ;; esac
        grep -F "'__fish_seen_subcommand_from $command'" "$tmp/fish" | grep -qF -- " $flag " || not_ok "fish_$command" "lacks $option"
    done
done
[ $options -gt 100 ] && ok every_option_is_in_help_man_and_completions || not_ok every_option_is_in_help_man_and_completions "only $options options"
echo "info - $(wc -w <<<"$commands") commands, $options options"
while read -r status meaning; do
    grep -qF "| $status | $meaning |" "$root/docs/cli.md" || not_ok exit_statuses "docs/cli.md lacks: $status $meaning"
    grep -qE "^ +$status +${meaning//[()]/.}" "$tmp/man.txt" || not_ok exit_statuses "the man page lacks: $status $meaning"
done <"$tmp/exits"
[ "$(wc -l <"$tmp/exits")" -eq 8 ] && ok exit_statuses_are_documented || not_ok exit_statuses_are_documented "$(cat "$tmp/exits")"
[ "$(complete_line adaptdl com)" = completion ] && ok bash_completes_commands || not_ok bash_completes_commands "$(complete_line adaptdl com)"
[ "$(complete_line adaptdl ls -o y)" = yaml ] && ok bash_completes_values || not_ok bash_completes_values "$(complete_line adaptdl ls -o y)"
[ "$(complete_line adaptdl help und)" = undrain ] && ok bash_completes_help || not_ok bash_completes_help "$(complete_line adaptdl help und)"
[ "$(complete_line adaptdl down --jobs l)" = leave ] && ok bash_completes_values_of_down || not_ok bash_completes_values_of_down "no"

# ---- without a cluster ----
for command in ls nodes events "describe x" "logs x" "delete x" "wait x" "drain node-0" "explain x" "top --once" "cp x:/adaptdl/share/y z"; do
    call $command
    if [ $rc -ne 5 ] || [ "$(wc -l <"$tmp/err")" -ne 1 ] || [ -s "$tmp/out" ] || ! grep -q "no cluster is running (socket $tmp/s/adaptdl.sock does not answer); start one with: adaptdl up\$" "$tmp/err"; then
        not_ok "no_cluster" "$command: exit $rc"
    fi
done
ok no_cluster_is_one_line_with_the_way_out
call down; check down_without_a_cluster 5 'no cluster is running'
call ls --server http://127.0.0.1:1; check a_server_that_does_not_answer 5 '127.0.0.1:1 does not answer .*; check --server'
call ls --server ftp://x; check a_bad_server 2 'server "ftp://x": expected unix:PATH'
call ls --server http://; check an_empty_server 2 'expected http://HOST:PORT'
call ls --state "/$(printf 'x%.0s' $(seq 200))"; check a_long_state 2 'the path is longer than 107 bytes'
call ls -o xml; check a_bad_format 2 '-o xml: must be json, yaml, wide or name'
call ls -N Bad_Name; check a_bad_namespace 2 'a namespace consists of'
call ls more; check arguments_that_nobody_takes 2 'takes no arguments'
call ls --phase Happy; check a_bad_phase 2 '--phase Happy: must be'
call completion tcsh; check an_unknown_shell 2 'must be bash, zsh or fish'
call wait; check wait_for_nothing 2 'for which jobs'
call wait --for Fun x; check wait_for_fun 2 'must be Succeeded, Running or Deleted'
call wait --timeout soon x; check a_bad_timeout 2 'must be a number of seconds'
call logs; check logs_of_nothing 2 'expected the name of one job'
call logs --rank -1 x; check a_bad_rank 2 '--rank -1: must be'
call delete; check delete_nothing 2 'which jobs'
call delete --all x; check delete_all_and_one 2 '--all takes no names'
call describe ../x; check a_name_with_dots 2 'a name consists of a-z'
call describe 'a/b/c'; check a_name_with_slashes 2 'a name consists of a-z'
call describe "$(printf 'x%.0s' $(seq 100000))"; check a_huge_name 2 'a name consists of a-z'
call describe $'x\e[31m'; check a_name_with_control_characters 2 'x\?\[31m'
call up --nodes 0; check no_nodes 2 '--nodes 0: must be'
call up --interval x; check a_bad_interval 2 '--interval x: must be'
call up --config "$tmp/none"; check a_missing_config 2 "$tmp/none: No such file"
call down --jobs burn; check down_burns_nothing 2 '--jobs burn: must be stop or leave'
echo 'nonsense: 1' >"$tmp/bad.yaml"
call up --config "$tmp/bad.yaml"; check a_bad_config 6 'the scheduler did not start: .*bad.yaml:1: .*nonsense'
call ls; check it_really_did_not_start 5
finish
