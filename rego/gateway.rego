# The rule that runs. It gives the answers of reference.rego from an index of the same policies, so that the cost of a
# decision hardly grows with their number. src/policies/compile.ts builds the index; the index says:
#
#   every, targets[id]   policies of all targets, and of one
#     use                who may use the target at all: a rank
#     tool, resource, prompt
#       everyone[""], role[name], group[name], user[id]
#         any            the best rank of policies with no pattern
#         exact          name -> rank
#         prefix         [[length, best rank, {first characters -> rank}]]; line_prefix: of names without a line break alone
#         suffix, line_suffix, contains, regex    [[text, rank]], best rank first
#
# A policy's rank is its place in reading order, so the first that fits is the least rank. WASM has no early exit: what is
# dear (a regex) is tried only if its rank could still win.
package portcullis.gateway

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
decision := verdict(first(input.name))

# METADATA
# description: The same question for many names of one type, in order. What a list shows.
# entrypoint: true
decisions := [verdict(first(name)) | some name in input.names]

# METADATA
# description: May this caller use this target at all?
# entrypoint: true
target := verdict(min(array.concat([data.nobody], [rank |
	some node in nodes
	some s in subjects
	rank := node.use[s[0]][s[1]]
])))

# METADATA
# description: Does the engine that will run this pattern accept it?
# entrypoint: true
valid_pattern := regex.is_valid(input.pattern)

verdict(rank) := {"effect": data.order[rank][0], "policy": data.order[rank][1], "rank": rank, "reason": "matched"} if {
	rank < data.nobody
} else := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

# The least rank of what fits this name.
first(name) := min(array.concat([cheapest], [p[1] |
	some p in patterns
	p[1] < cheapest
	regex.match(p[0], name)
])) if {
	cheapest := least_without_regex(name)
}

least_without_regex(name) := min(array.concat(
	array.concat([whole], [rank | some names in exact; rank := names[name]]),
	array.concat(
		[rank | some p in prefixes; p[1] < whole; rank := p[2][substring(name, 0, p[0])]],
		[t[1] | some t in texts; t[1] < whole; fits_text(t, name)],
	),
))

fits_text(t, name) if {
	t[2] == "suffix"
	endswith(name, t[0])
}

whole := min(array.concat([data.nobody], [bucket.any | some bucket in buckets]))

exact := [bucket.exact | some bucket in buckets]

prefixes := [p | some bucket in buckets; some p in bucket.prefix]

patterns := [p | some bucket in buckets; some p in bucket.regex]

texts := [t | some bucket in buckets; some t in bucket.texts]

buckets := [bucket |
	some node in nodes
	by_subject := node[input.type]
	some s in subjects
	bucket := by_subject[s[0]][s[1]]
]

nodes := array.concat([data.index.every], [node | node := data.index.targets[input.target]])

subjects := array.concat(
	[["everyone", ""], ["role", input.role], ["user", input.sub]],
	[["group", group] | some group in input.groups],
)
