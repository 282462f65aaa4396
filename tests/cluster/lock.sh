# shellcheck shell=bash
# Sourced. take FD FILE: locks the file that the descriptor was opened on for appending, and until then says each ten seconds who has it.
take() {
  while ! flock --timeout 10 "$1"; do
    local holder
    holder=$(cat "$2")
    echo "logkeep: waiting for $2, held since $(date -r "$2" +%T) by ${holder:-a process that has not said which it is}" >&2
  done
  echo "process $$, $0 in $PWD" >"$2"
}
