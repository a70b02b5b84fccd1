# The rule that the gateway runs. It gives the same answers as reference.rego. It reads an index instead of the policies, so that
# a decision costs hardly more if there are many policies. README.md says how tests hold the two rules equal.
#
# The policies are numbered in evaluation order. That number is the policy's rank, so the first policy that matches a request is
# the matching policy with the least rank. The compiler writes these documents:
#
#   data.order[rank]     effect and id of a policy
#   data.unmatched       the rank after the last one; it stands for "no policy matches"
#   data.index.every     node: the policies for every target
#   data.index.targets   target id -> node: the policies for that target
#
# A node sorts its policies by what they are about, and then by subject: everyone[""], role[name], group[name] or user[id].
#
#   use                      may the caller use the target at all? subject -> least rank. Every allow counts. A deny counts if it
#                            is of type "all" and has no pattern
#   tool, resource, prompt   may the caller use an object of this type? subject -> bucket. A policy of type "all" is in all three
#
# A bucket tells which of its policies match a name:
#
#   any      the least rank of the policies that match every name
#   exact    name -> the least rank of the policies that match exactly this name
#   edges    list of [least rank, length, text -> tests]. The text is the beginning of the name, with this many characters; if the
#            length is negative, the text is the end of the name. The tests apply only to names with that beginning or end
#   tests    tests that apply to all names
#
# A test is [rank, form, text], or [rank, "regex", text, pattern]. Only a name that contains the text can match. The form says
# what else must hold:
#
#   "prefix", "suffix", "contains"   the text is at the beginning, at the end, or anywhere in the name
#   "line prefix" and so on          the same, and the name has no line break: a dot in a pattern does not match one, unless the
#                                    pattern sets the flag s, as in (?s)
#   "regex"                          the pattern is found in the name; tried only if no lesser rank is known to match
package portcullis.gateway

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
decision := verdict(found(input.name)[0])

# METADATA
# description: The same question for many names of one type, answered in their order. It decides what a list shows.
# entrypoint: true
decisions := [verdict(finding[0]) | some finding in findings]

# METADATA
# description: May this caller use this target at all?
# entrypoint: true
target := verdict(min(array.concat([data.unmatched], for_caller([node.use | some node in nodes]))))

# The next three rules serve policy sets with more regular expressions than one WASM instance can hold safely. Further instances
# then hold the remaining patterns. A test whose pattern is in a further instance is [rank, instance, text, number of the pattern
# in that instance]. The engine asks for a survey, asks the further instances which patterns match, and takes the least rank.

# METADATA
# description: The decisions of this instance alone, and [position of the name, rank, instance, pattern] of each test that could change one.
# entrypoint: true
survey := {"decisions": decisions, "elsewhere": [[i, test[0], test[1], test[3]] |
	some i, finding in findings
	some test in finding[1]
]}

# METADATA
# description: The elements of input.tries, each [position of the name, rank, pattern], whose pattern matches the name.
# entrypoint: true
matching := [try |
	some try in input.tries
	regex.match(data.patterns[try[2]], input.names[try[0]])
]

# METADATA
# description: What the policy with each of these ranks decides.
# entrypoint: true
verdicts := [verdict(rank) | some rank in input.ranks]

# METADATA
# description: Is this a pattern that the engine can run?
# entrypoint: true
valid_pattern := regex.is_valid(input.pattern)

verdict(rank) := {"effect": decided[0], "policy": decided[1], "rank": rank, "reason": "matched"} if {
	decided := data.order[rank]
} else := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

findings := [found(name) | some name in input.names]

# Two values: the least rank of the policies that match this name, as far as this instance knows, and the tests whose patterns are in
# further instances and that have a lesser rank.
found(name) := [rank, [test | some test in candidates; is_number(test[1]); test[0] < rank]] if {
	candidates := array.concat(
		[test | some test in tests; contains(name, test[2])],
		[test | some group in edges; some test in group[2][edge(name, group[1])]; contains(name, test[2])],
	)
	least := min(array.concat(
		array.concat([rank_for_every_name], [ranks[name] | some ranks in exacts]),
		[test[0] | some test in candidates; matches(test, name)],
	))
	rank := min(array.concat([least], [test[0] |
		some test in candidates
		test[1] == "regex"
		test[0] < least
		regex.match(test[3], name)
	]))
}

matches(test, _) if test[1] == "contains"

matches(test, name) if {
	test[1] == "prefix"
	startswith(name, test[2])
}

matches(test, name) if {
	test[1] == "suffix"
	endswith(name, test[2])
}

matches(test, name) if {
	test[1] == "line contains"
	not contains(name, "\n")
}

matches(test, name) if {
	test[1] == "line prefix"
	startswith(name, test[2])
	not contains(name, "\n")
}

matches(test, name) if {
	test[1] == "line suffix"
	endswith(name, test[2])
	not contains(name, "\n")
}

edge(name, length) := substring(name, 0, length) if length > 0

edge(name, length) := substring(name, start, -1) if {
	length < 0
	start := count(name) + length
	start >= 0
}

rank_for_every_name := min(array.concat([data.unmatched], [bucket.any | some bucket in buckets]))

exacts := [bucket.exact | some bucket in buckets]

edges := [group | some bucket in buckets; some group in bucket.edges; group[0] < rank_for_every_name]

tests := [test | some bucket in buckets; some test in bucket.tests; test[0] < rank_for_every_name]

buckets := for_caller([node[input.type] | some node in nodes])

# What these tables hold for the caller: the entries for everyone, for the role, for each group, and for the user id.
for_caller(tables) := array.concat(
	array.concat(
		[table.everyone[""] | some table in tables],
		[table.role[input.role] | some table in tables],
	),
	array.concat(
		[table.group[group] | some table in tables; some group in input.groups],
		[table.user[input.sub] | some table in tables],
	),
)

nodes := array.concat([data.index.every], [node | node := data.index.targets[input.target]])
