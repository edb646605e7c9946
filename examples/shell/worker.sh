#!/usr/bin/env bash
# A Ropeway worker in bash, curl and awk: one job at a time. See README.md beside it.
#
#   ROPEWAY_TOKEN=... ./worker.sh [handlers.sh]
#
# It leases a job with a long poll, keeps its lease alive while the handler runs, and writes how it ended. What it was
# told is no longer its own it stops and forgets. SIGTERM lets the job finish, or gives it back after DRAIN_SECONDS.

set -uo pipefail
set -m # what runs in the background has a process group of its own: Ctrl-C does not reach it, and it can be ended whole

url=${ROPEWAY_URL:-http://127.0.0.1:8000}
url=${url%/}
queues=${QUEUES:-default}
lease_seconds=${LEASE_SECONDS:-30}
drain_seconds=${DRAIN_SECONDS:-25}
worker_id=${WORKER_ID:-$HOSTNAME-$$}
wait_seconds=20 # of a long poll; the server cuts it at 30
patience=50     # for an answer

: "${ROPEWAY_TOKEN:?is the API key of this worker}"
# shellcheck source=handlers.sh
source "${1:-$(dirname "${BASH_SOURCE[0]}")/handlers.sh}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# In a file that nobody else can read: the command line of curl is for all to see.
(umask 077 && printf 'header = "Authorization: Bearer %s"\n' "$ROPEWAY_TOKEN" >"$work/curl")
unset ROPEWAY_TOKEN # handlers have no business with it

stopping='' asking='' polling='' running='' draining='' code=0

say() { printf '%s\n' "$*" >&2; }

# ── HTTP ──

# once METHOD PATH BODY NAME: one request; the body is a file's name. Sets `status`, 000 when nobody answered; what
# came is in $work/NAME.reply and $work/NAME.head. In the background, so that a signal is heard while it waits.
once() {
  local data=()
  : >"$work/$4.status" # also when it is broken off before it began
  [ -z "$3" ] || data=(--header 'Content-Type: application/json' --data-binary "@$3")
  curl --silent --config "$work/curl" --request "$1" "${data[@]}" --max-time "$patience" \
    --output "$work/$4.reply" --dump-header "$work/$4.head" --write-out '%{http_code}' "$url$2" >"$work/$4.status" &
  asking=$!
  # A signal that came before there was something to break off.
  [ -z "$stopping" ] || [ "$4" != lease ] || break_off
  until_gone "$asking"
  asking=''
  status=$(<"$work/$4.status")
  status=${status:-000}
}

# -KILL: a child that has not become curl yet would run our traps on any other signal, and remove $work.
break_off() { kill -KILL "$asking" 2>/dev/null; }

# Waits for a process of ours; a signal ends bash's own wait, not this one. Sets `code`.
until_gone() {
  local ended
  while :; do
    wait "$1" 2>/dev/null
    code=$?
    [ "$code" -gt 128 ] || return 0
    # A signal to the process, or one to us while it went on, or ended just then.
    kill -0 "$1" 2>/dev/null && continue
    wait "$1" 2>/dev/null
    ended=$?
    [ "$ended" -eq 127 ] || code=$ended
    return 0
  done
}

# send METHOD PATH BODY NAME: until it is answered. A server that is away, or asks for patience (429 and 503, with
# Retry-After), is asked again: all that is sent here may be sent twice, the same token is answered alike.
send() {
  local pause=1 asked
  while :; do
    once "$@"
    case $status in
      000 | 429 | 5??) ;;
      *) return 0 ;;
    esac
    [ -z "$stopping" ] || [ "$4" != lease ] || return 0
    asked=$(awk 'tolower($1) == "retry-after:" { print int($2) }' "$work/$4.head" 2>/dev/null)
    say "$2: ${status/000/no answer}, again in ${asked:-$pause} s"
    sleep "${asked:-$pause}" &
    wait $! || true
    pause=$((pause < 4 ? pause * 2 : 5))
  done
}

# put TEXT FILE: a body to send.
put() { printf '%s' "$1" >"$work/$2" && printf '%s' "$work/$2"; }

# ── JSON ──

# The members of a lease reply that are needed, each in a file: it is walked by its brackets and strings, so that
# nothing in a payload can pass for something else, and payloads stay as they are.
take_apart() {
  LC_ALL=C awk -v into="$work/job." '
    { text = text (NR > 1 ? "\n" : "") $0 }
    END {
      wanted["leases.job.id"] = "id"; wanted["leases.job.type"] = "type"; wanted["leases.job.payload"] = "payload"
      wanted["leases.attempt"] = "attempt"; wanted["leases.lease_token"] = "token"
      wanted["leases.job.timeout"] = "timeout"
      size = length(text)
      for (at = 1; at <= size; at++) {
        sign = substr(text, at, 1)
        if (sign == "\"") {
          begin = at
          while ((sign = substr(text, ++at, 1)) != "\"") if (sign == "\\") at++
          string = substr(text, begin + 1, at - begin - 1)
        } else if (sign == "{" || sign == "[") name[++depth] = ""
        else if (sign == ":") { name[depth] = string; from[depth] = at + 1 }
        else if (sign == ",") ended()
        else if (sign == "}" || sign == "]") { ended(); depth-- }
      }
    }
    function ended(  path, level, value, file) {
      if (name[depth] == "") return
      for (level = 1; level <= depth; level++) if (name[level] != "") path = path (path == "" ? "" : ".") name[level]
      name[depth] = ""
      if (!(path in wanted)) return
      value = substr(text, from[depth], at - from[depth])
      file = into wanted[path]
      if (wanted[path] != "payload") gsub(/[" \t\n]/, "", value)
      printf "%s", value > file
      close(file)
    }' "$1"
}

# The end of a text as a JSON string.
quoted() {
  tail -c 4000 | LC_ALL=C tr -d '\000' | LC_ALL=C awk '
    BEGIN { for (code = 1; code < 32; code++) escape[sprintf("%c", code)] = sprintf("\\u%04x", code)
            escape["\\"] = "\\\\"; escape["\""] = "\\\""; printf "\"" }
    { if (NR > 1) printf "\\n"
      for (at = 1; at <= length($0); at++) { sign = substr($0, at, 1); printf "%s", sign in escape ? escape[sign] : sign } }
    END { printf "\"" }'
}

code_of() { grep -o '"code":"[a-z_]*"' "$work/$1.reply" 2>/dev/null | head -n 1 | cut -d '"' -f 4; }

# ── One job ──

# Keeps the lease alive, and ends the handler when it is lost, late, or its worker is gone. Runs beside it.
beat() {
  local handler=$1 left=${timeout%.*} worker=$$ every=$(((lease_seconds + 2) / 3)) good=$lease_seconds body
  body=$(put "{\"lease_token\":\"$token\",\"lease_seconds\":$lease_seconds}" beat.body)
  patience=$((every + 2))
  while sleep "$every"; do
    if ! kill -0 "$worker" 2>/dev/null; then
      kill -KILL -- "-$handler" 2>/dev/null # nobody is left to write its outcome
      return
    fi
    if [ "$left" -gt 0 ] && [ $((left -= every)) -le 0 ]; then
      touch "$work/late"
      kill -KILL -- "-$handler" 2>/dev/null
    fi
    once POST "/v1/jobs/$id/heartbeat" "$body" beat
    case $status in
      200) good=$lease_seconds ;;
      409 | 404) good=0 ;;
      *) good=$((good - every)) ;; # by our own clock: when it is over, somebody else may run it
    esac
    if [ "$good" -le 0 ]; then
      touch "$work/lost"
      kill -KILL -- "-$handler" 2>/dev/null
      return
    fi
    report
  done
}

run_job() {
  local id type token timeout attempt name beating pid
  rm -f "$work"/job.* "$work"/{lost,late,drained,out,err}
  take_apart "$work/lease.reply"
  id=$(<"$work/job.id") type=$(<"$work/job.type") token=$(<"$work/job.token")
  attempt=$(<"$work/job.attempt") timeout=$(<"$work/job.timeout")
  say "$type $id: attempt $attempt"

  if [ -n "$stopping" ]; then
    settle release "$(put "{\"lease_token\":\"$token\"}" body)"
    return
  fi
  name=handle_${type//[^A-Za-z0-9]/_}
  if ! declare -F "$name" >/dev/null; then
    echo "this worker has no handler for $type" >"$work/err"
    failed unknown_type 1
    return
  fi
  JOB_ID=$id JOB_TYPE=$type JOB_ATTEMPT=$attempt "$name" <"$work/job.payload" >"$work/out" 2>"$work/err" &
  running=$!
  [ -z "$stopping" ] || drain
  beat "$running" &
  beating=$!
  until_gone "$running"
  running=''

  if [ -e "$work/lost" ]; then
    say "$type $id: the lease is lost, stopped"
  elif [ -e "$work/drained" ]; then
    settle release "$(put "{\"lease_token\":\"$token\"}" body)"
  elif [ -e "$work/late" ]; then
    echo 'the job ran longer than its timeout' >"$work/err"
    failed Timeout 1
  elif [ "$code" -eq 0 ]; then
    {
      printf '{"lease_token":"%s"' "$token"
      [ ! -s "$work/out" ] || { printf ',"result":' && cat "$work/out"; }
      printf '}'
    } >"$work/body"
    settle ack "$work/body"
  else
    failed "exit code $code" "$code"
  fi
  for pid in "$beating" ${draining:+"$draining"}; do
    kill -KILL -- "-$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
}

# failed TYPE CODE: what the handler wrote to stderr is the message. Exit code 65 says that no retry would help.
failed() {
  local retry=true
  [ "$2" -ne 65 ] || retry=false
  {
    printf '{"lease_token":"%s","retry":%s,"error":{"type":"%s","message":' "$token" "$retry" "$1"
    quoted <"$work/err"
    printf '}}'
  } >"$work/body"
  settle nack "$work/body"
}

settle() {
  send POST "/v1/jobs/$id/$1" "$2" settle
  case $status in
    200) say "$type $id: $1" ;;
    # 409: taken back, cancelled or ended. The outcome is not ours to write.
    409) say "$type $id: $1 not written, $(code_of settle)" ;;
    *)
      say "$type $id: $1 refused, $status $(code_of settle)"
      [ "$1" = ack ] || return 0
      echo 'the handler printed no JSON' >"$work/err"
      failed bad_result 1
      ;;
  esac
}

# ── The worker ──

list="\"${queues//,/\",\"}\""
owner=$(cat /proc/sys/kernel/random/uuid 2>/dev/null || uuidgen | tr 'A-F' 'a-f')

# Tells that this worker is there; one that was silent for a minute is no longer listed.
report() {
  local body
  body="{\"host\":\"$HOSTNAME\",\"pid\":$$,\"version\":\"bash ${BASH_VERSINFO[0]}\",\"queues\":[$list],\"slots\":1,"
  body=$(put "$body\"running\":$([ -n "${id:-}" ] && echo 1 || echo 0)}" report.body)
  once PUT "/v1/workers/$worker_id" "$body" report
}

leave() {
  say 'stopping'
  stopping=yes
  if [ -n "$running" ]; then
    drain
  elif [ -n "$polling" ] && [ -n "$asking" ]; then
    break_off
  fi
}

# The handler has this long to finish; then it is ended and its job given back.
drain() {
  (sleep "$drain_seconds" && touch "$work/drained" && kill -KILL -- "-$running") 2>/dev/null &
  draining=$!
}
trap leave TERM INT

report
case $status in
  401 | 403) say "the server refuses this key: $(code_of report)"; exit 1 ;;
esac
say "worker $worker_id takes jobs from $queues"
lease="{\"queues\":[$list],\"worker_id\":\"$worker_id\",\"owner\":\"$owner\",\"count\":1,"
lease=$(put "$lease\"lease_seconds\":$lease_seconds,\"wait\":$wait_seconds}" lease.body)
while [ -z "$stopping" ]; do
  polling=yes
  send POST /v1/lease "$lease" lease
  polling=''
  case $status in
    200) run_job ;;
    204) report ;;
    000) ;;
    *)
      [ -n "$stopping" ] || say "the server refuses to lease: $status $(code_of lease)"
      stopping=yes
      ;;
  esac
done

# A poll that was broken off may have been granted a job just then: it was not started.
once POST /v1/owners/end "$(put "{\"owner\":\"$owner\",\"started\":[]}" end.body)" end
once DELETE "/v1/workers/$worker_id" '' end
say 'stopped'
