package portcullis.reference_test

import data.portcullis.reference

policy(id, given) := object.union(
	{
		"id": id,
		"name": id,
		"effect": "allow",
		"priority": 0,
		"target": null,
		"type": "all",
		"pattern": null,
		"subjects": [["everyone"]],
	},
	given,
)

ann := {"sub": "ann", "role": "dev", "groups": ["ops"], "target": "t", "type": "tool", "name": "get_issue"}

decided(policies, given) := answer if {
	answer := reference.decision.policy with data.policies as policies with input as object.union(ann, given)
}

usable(policies, given) := answer if {
	answer := reference.target.policy with data.policies as policies with input as object.union(ann, given)
}

test_default_deny if {
	reference.decision == {"effect": "deny", "policy": null, "rank": null, "reason": "default"} with data.policies as []
		with input as ann
	reference.target == {"effect": "deny", "policy": null, "rank": null, "reason": "default"} with data.policies as []
		with input as ann
}

test_whole_answer if {
	answer := reference.decision with data.policies as [policy("a", {"effect": "deny"})] with input as ann
	answer == {"effect": "deny", "policy": "a", "rank": 0, "reason": "matched"}
}

test_higher_priority_first if {
	decided([policy("a", {"priority": 9}), policy("b", {"priority": 10})], {}) == "b"
}

test_deny_before_allow if {
	decided([policy("a", {}), policy("b", {"effect": "deny"})], {}) == "b"
}

test_lower_id_first if {
	decided([policy("b", {}), policy("a", {})], {}) == "a"
}

test_target if {
	decided([policy("a", {"target": "t"})], {}) == "a"
	decided([policy("a", {"target": "u"})], {}) == null
}

test_type if {
	decided([policy("a", {"type": "tool"})], {}) == "a"
	decided([policy("a", {"type": "prompt"})], {}) == null
}

test_pattern_is_unanchored if {
	decided([policy("a", {"pattern": "issue"})], {}) == "a"
	decided([policy("a", {"pattern": "^issue"})], {}) == null
}

test_subjects if {
	decided([policy("a", {"subjects": [["role", "dev"]]})], {}) == "a"
	decided([policy("a", {"subjects": [["group", "ops"]]})], {}) == "a"
	decided([policy("a", {"subjects": [["user", "ann"]]})], {}) == "a"
	decided([policy("a", {"subjects": [["role", "ops"], ["group", "dev"], ["user", "dev"]]})], {}) == null
	decided([policy("a", {"subjects": []})], {}) == null
}

test_any_allow_grants_the_target if {
	usable([policy("a", {"type": "prompt", "pattern": "^x$"})], {}) == "a"
}

test_deny_of_everything_refuses_the_target if {
	usable([policy("a", {}), policy("b", {"effect": "deny", "priority": 1})], {}) == "b"
}

test_narrower_denies_do_not_refuse_the_target if {
	narrower := [
		policy("a", {}),
		policy("b", {"effect": "deny", "priority": 1, "type": "tool"}),
		policy("c", {"effect": "deny", "priority": 1, "pattern": ".*"}),
	]
	usable(narrower, {}) == "a"
}
