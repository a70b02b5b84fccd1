package portcullis.gateway_test

import data.portcullis.gateway

# An index with a policy of every form. The numbers in it are ranks, which are positions in this list.
order := [
	["deny", "p0"], ["allow", "p1"], ["deny", "p2"], ["allow", "p3"], ["deny", "p4"],
	["allow", "p5"], ["deny", "p6"], ["allow", "p7"], ["allow", "p8"], ["allow", "p9"],
]

no_subjects := {"everyone": {}, "role": {}, "group": {}, "user": {}}

index := {
	"every": {
		"use": object.union(no_subjects, {"role": {"dev": 9}}),
		"tool": object.union(no_subjects, {"role": {"dev": {"any": 9}}}),
		"resource": no_subjects,
		"prompt": no_subjects,
	},
	"targets": {"t": {
		"use": object.union(no_subjects, {"user": {"eve": 0}}),
		"tool": object.union(no_subjects, {
			"everyone": {"": {
				"exact": {"ping": 1},
				"edges": [
					[2, 4, {"get_": [[2, "prefix", "get_"]], "list": [[3, "line prefix", "list_"]]}],
					[4, -4, {"_raw": [[4, "suffix", "_raw"]], "line": [[5, "line suffix", "_line"]]}],
				],
				"tests": [[6, "contains", "secret"]],
			}},
			"group": {"ops": {
				"edges": [
					[8, 2, {"x_": [[8, "regex", "x_", "^x_[0-9]+$"]]}],
					[8, -2, {"_z": [[8, "regex", "_z", "^[0-9]+_z$"]]}],
				],
				"tests": [[7, "regex", "", "^[0-9]+$"]],
			}},
			"user": {"eve": {"any": 0}},
		}),
		"resource": no_subjects,
		"prompt": no_subjects,
	}},
}

ann := {"sub": "ann", "role": "user", "groups": ["ops"], "target": "t", "type": "tool"}

asked(given) := object.union(ann, given)

rank(given) := answer if {
	answer := gateway.decision.rank with data.index as index
		with data.order as order
		with data.unmatched as 10
		with input as asked(given)
}

test_default_deny if {
	answer := gateway.decision with data.index as index
		with data.order as order
		with data.unmatched as 10
		with input as asked({"name": "other"})
	answer == {"effect": "deny", "policy": null, "rank": null, "reason": "default"}
}

test_whole_answer if {
	answer := gateway.decision with data.index as index
		with data.order as order
		with data.unmatched as 10
		with input as asked({"name": "ping"})
	answer == {"effect": "allow", "policy": "p1", "rank": 1, "reason": "matched"}
}

test_every_form_of_test if {
	rank({"name": "ping"}) == 1
	rank({"name": "get_x"}) == 2
	rank({"name": "list_x"}) == 3
	rank({"name": "x_raw"}) == 4
	rank({"name": "x_line"}) == 5
	rank({"name": "a_secret_b"}) == 6
	rank({"name": "123"}) == 7
	rank({"name": "x_1"}) == 8
	rank({"name": "y_1"}) == null
	rank({"name": "1_z"}) == 8
	rank({"name": "z"}) == null
}

test_least_rank_wins if {
	rank({"name": "get_secret_raw"}) == 2
	rank({"name": "secret_raw"}) == 4
	rank({"name": "ping", "sub": "eve"}) == 0
}

test_line_forms_need_a_name_without_line_breaks if {
	rank({"name": "list_\n"}) == null
	rank({"name": "\n_line"}) == null
	rank({"name": "get_\n"}) == 2
	rank({"name": "\n_raw"}) == 4
}

test_answers_depend_on_the_caller if {
	rank({"name": "123", "groups": []}) == null
	rank({"name": "123", "role": "dev"}) == 7
	rank({"name": "other", "role": "dev"}) == 9
	rank({"name": "other", "role": "dev", "target": "u"}) == 9
	rank({"name": "ping", "target": "u"}) == null
	rank({"name": "ping", "type": "prompt"}) == null
}

test_list_gives_the_answers_of_single_calls if {
	names := ["ping", "get_x", "other", "123"]
	answers := gateway.decisions with data.index as index
		with data.order as order
		with data.unmatched as 10
		with input as asked({"names": names})
	[answer.rank | some answer in answers] == [rank({"name": name}) | some name in names]
}

test_target if {
	usable({}) == null
	usable({"sub": "eve"}) == 0
	usable({"role": "dev"}) == 9
	usable({"role": "dev", "target": "u"}) == 9
}

usable(given) := answer if {
	answer := gateway.target.rank with data.index as index
		with data.order as order
		with data.unmatched as 10
		with input as asked(given)
}

test_survey_names_patterns_in_further_instances if {
	elsewhere := {
		"every": index.every,
		"targets": {"t": object.union(index.targets.t, {"tool": object.union(no_subjects, {"group": {"ops": {
			"any": 5,
			"edges": [[4, 2, {"x_": [[4, 2, "x_", 8]]}]],
			"tests": [[3, 0, "1", 9], [4, 0, "needed", 9], [7, 1, "", 9]],
		}}})})},
	}
	answer := gateway.survey with data.index as elsewhere
		with data.order as order
		with data.unmatched as 10
		with input as asked({"names": ["other", "x_1"]})
	[decision.rank | some decision in answer.decisions] == [5, 5]
	answer.elsewhere == [[1, 3, 0, 9], [1, 4, 2, 8]]
}

test_matching if {
	tries := [[0, 4, 1], [1, 4, 1], [1, 3, 0]]
	answer := gateway.matching with data.patterns as ["^x", "^[0-9]+$"] with input as {"names": ["other", "1"], "tries": tries}
	answer == [[1, 4, 1]]
}

test_verdicts if {
	answers := gateway.verdicts with data.order as order with data.unmatched as 10 with input as {"ranks": [3, 10]}
	[answer.policy | some answer in answers] == ["p3", null]
}

test_valid_pattern if {
	gateway.valid_pattern with input as {"pattern": "^a"}
	not gateway.valid_pattern with input as {"pattern": "("}
}
