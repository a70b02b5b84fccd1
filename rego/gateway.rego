# The rule that runs. It gives the answers of reference.rego from an index of the same policies, so that the cost of a
# decision hardly grows with their number. src/policies/compile.ts builds the index:
#
#   index.every, index.targets[id]       policies of every target, and of one
#     use                                who may use the target at all: rank
#     tool, resource, prompt             who may use objects of this type: bucket
#       everyone[""], role[name], group[name], user[id]
#
# A policy's rank is its place in reading order, so the first that fits is the least rank. A bucket holds ranks by the form
# of their patterns, and each list is sorted by rank:
#
#   any        rank
#   exact      name -> rank
#   prefix     [least rank, one line, length, first characters -> rank]
#   suffix     [rank, one line, text]
#   contains   [rank, one line, text]
#   regex      [rank, pattern]
#   guarded    [least rank, length, characters -> [rank, pattern]]: regexes that only match names that begin with these
#              characters, or end with them where the length is negative
#
# "One line" means that only names without a line break fit. What is dear to try is tried only if its rank could still win.
package portcullis.gateway

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
decision := verdict(first(input.name))

# METADATA
# description: The same question for many names of one type, in order; what a list shows.
# entrypoint: true
decisions := [verdict(rank) | some rank in ranks]

# METADATA
# description: May this caller use this target at all?
# entrypoint: true
target := verdict(min(array.concat([data.unmatched], held_in([node.use | some node in nodes]))))

# The next three are for sets with more regexes than one WASM instance can hold (src/decision/partition.ts). Other instances
# then hold them, the number of one stands in place of the pattern, and the least rank of all that were asked decides.

# METADATA
# description: The answers so far, and the instances whose regexes could still win.
# entrypoint: true
survey := {"decisions": decisions, "elsewhere": {entry[1] |
	some i, name in input.names
	some entry in candidates(name, ranks[i])
	is_number(entry[1])
}}

# METADATA
# description: The least rank for each name; unmatched where none fits.
# entrypoint: true
ranks := [first(name) | some name in input.names]

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

# The least rank of the policies that fit this name.
first(name) := min(array.concat([cheapest], [entry[0] |
	some entry in candidates(name, cheapest)
	is_string(entry[1])
	regex.match(entry[1], name)
])) if {
	cheapest := first_without_regex(name)
}

# Regexes that may match and would decide before this rank.
candidates(name, rank) := array.concat(
	[entry | some entry in regexes; entry[0] < rank],
	[entry |
		some group in guarded
		group[0] < rank
		some entry in group[2][edge(name, group[1])]
		entry[0] < rank
	],
)

edge(name, length) := substring(name, 0, length) if length > 0

edge(name, length) := substring(name, start, -1) if {
	length < 0
	start := count(name) + length
	start >= 0
}

first_without_regex(name) := min(array.concat(
	array.concat([first_for_all_names], [ranks[name] | some ranks in exacts]),
	array.concat(
		[rank |
			some entry in prefixes
			entry[0] < first_for_all_names
			rank := entry[3][substring(name, 0, entry[2])]
			lines_fit(entry, name)
		],
		array.concat(
			[entry[0] |
				some entry in suffixes
				entry[0] < first_for_all_names
				endswith(name, entry[2])
				lines_fit(entry, name)
			],
			[entry[0] |
				some entry in substrings
				entry[0] < first_for_all_names
				contains(name, entry[2])
				lines_fit(entry, name)
			],
		),
	),
))

lines_fit(entry, _) if entry[1] == false

lines_fit(entry, name) if {
	entry[1] == true
	not contains(name, "\n")
}

first_for_all_names := min(array.concat([data.unmatched], [bucket.any | some bucket in buckets]))

exacts := [bucket.exact | some bucket in buckets]

prefixes := [entry | some bucket in buckets; some entry in bucket.prefix]

suffixes := [entry | some bucket in buckets; some entry in bucket.suffix]

substrings := [entry | some bucket in buckets; some entry in bucket.contains]

regexes := [entry | some bucket in buckets; some entry in bucket.regex]

guarded := [group | some bucket in buckets; some group in bucket.guarded]

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
