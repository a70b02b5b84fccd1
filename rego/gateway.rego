# The rule that runs. It gives the answers of reference.rego from an index of the same policies, so that the cost of a
# decision hardly grows with their number. src/policies/compile.ts builds the index:
#
#   index.every, index.targets[id]       policies of every target, and of one
#     use                                who may use the target at all: rank
#     tool, resource, prompt             who may use objects of this type: bucket
#       everyone[""], role[name], group[name], user[id]
#
# A policy's rank is its place in reading order, so the first that fits is the least rank. A bucket holds what tells whether a
# policy fits a name:
#
#   any      rank of the first policy that fits every name
#   exact    name -> rank
#   edges    [least rank, length, characters -> tests]: for names that begin with these characters, or end with them where the
#            length is negative
#   tests    for all names
#
# A test is [rank, form, text] or [rank, "regex", text, pattern]. Every name that fits contains the text. "prefix", "suffix" and
# "contains" say where; with "line" before it, only names without a line break fit. A regex is tried only if its rank could win.
package portcullis.gateway

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
decision := verdict(found(input.name)[0])

# METADATA
# description: The same question for many names of one type, in order; what a list shows.
# entrypoint: true
decisions := [verdict(finding[0]) | some finding in findings]

# METADATA
# description: May this caller use this target at all?
# entrypoint: true
target := verdict(min(array.concat([data.unmatched], held_in([node.use | some node in nodes]))))

# The next three are for sets with more regexes than one WASM instance can hold (src/decision/partition.ts). Other instances
# then hold the rest: a test is [rank, number of the instance, text, number of the pattern there], and the least rank decides.

# METADATA
# description: The answers so far, and which patterns elsewhere could still win, as [place of the name, rank, instance, pattern].
# entrypoint: true
survey := {"decisions": decisions, "elsewhere": [[i, test[0], test[1], test[3]] |
	some i, finding in findings
	some test in finding[1]
]}

# METADATA
# description: Those of [place of the name, rank, pattern] whose pattern matches.
# entrypoint: true
matching := [try |
	some try in input.tries
	regex.match(data.patterns[try[2]], input.names[try[0]])
]

# METADATA
# description: What the policy at each rank decides.
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

# The least rank of the policies that fit this name, and the tests held elsewhere that would decide before it.
found(name) := [rank, [test | some test in near; is_number(test[1]); test[0] < rank]] if {
	near := array.concat(
		[test | some test in tests; contains(name, test[2])],
		[test | some group in edges; some test in group[2][edge(name, group[1])]; contains(name, test[2])],
	)
	plain := min(array.concat(
		array.concat([first_for_all_names], [ranks[name] | some ranks in exacts]),
		[test[0] | some test in near; fits(test, name)],
	))
	rank := min(array.concat([plain], [test[0] |
		some test in near
		test[1] == "regex"
		test[0] < plain
		regex.match(test[3], name)
	]))
}

fits(test, _) if test[1] == "contains"

fits(test, name) if {
	test[1] == "prefix"
	startswith(name, test[2])
}

fits(test, name) if {
	test[1] == "suffix"
	endswith(name, test[2])
}

fits(test, name) if {
	test[1] == "line contains"
	not contains(name, "\n")
}

fits(test, name) if {
	test[1] == "line prefix"
	startswith(name, test[2])
	not contains(name, "\n")
}

fits(test, name) if {
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

first_for_all_names := min(array.concat([data.unmatched], [bucket.any | some bucket in buckets]))

exacts := [bucket.exact | some bucket in buckets]

edges := [group | some bucket in buckets; some group in bucket.edges; group[0] < first_for_all_names]

tests := [test | some bucket in buckets; some test in bucket.tests; test[0] < first_for_all_names]

buckets := held_in([node[input.type] | some node in nodes])

# What these tables hold for the caller.
held_in(tables) := array.concat(
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
