# One function per type of job: `email.send` is handle_email_send (what is no letter or digit becomes _).
# The payload comes on stdin, as JSON. What the function prints is the result, as JSON; nothing is no result. Exit code 0
# is success; any other is a failed attempt with stderr as its message; 65 says that trying again is of no use.

# Pretends to send.
handle_email_send() {
  payload=$(cat)
  case $payload in
    *'"to"'*) echo '{"sent":true}' ;;
    *) echo 'there is nobody to send it to' >&2 && return 65 ;;
  esac
}

# {"seconds": 5}
handle_sleep() {
  seconds=$(tr -dc '0-9')
  sleep "$seconds"
  echo "$seconds"
}

# Fails, whatever it is given: to see retries and a death.
handle_fail() {
  echo 'as asked' >&2
  return 1
}
