# All operators, all instruction sets of this CPU; errors vary, verdicts do not.
. "$CLI/lib.inc"
mhla check >text; code=$?
sed -E 's/  +([0-9.e+-]+|inf)( |$).*(OK|FAIL)$/  ... \3/; s/^( +cases).*/\1 .../; s/^[0-9]+ comp/N comp/' text
mhla check --brief --json >json; echo "$?"
json <json | grep -E '^(rows.*\.ok|ok) '
MHLA_ISA=plain mhla check --brief | sed -n 3p
exit $code
