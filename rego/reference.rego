# The rule that reviewers read: what a decision is, in the plainest words. It is slow, and it is right.
#
# Policies are read by priority (higher first), then deny before allow, then id; the first that fits the request decides;
# if none fits, the answer is deny. gateway.rego gives the same answers faster, and tests hold the two equal.
package portcullis.reference

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
default decision := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

decision := verdict(fitting_request)

# METADATA
# description: May this caller use this target at all? A deny of less than everything does not say, so it is not read.
# entrypoint: true
default target := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

target := verdict(speaking_of_target)

fitting_request contains place if {
	some place, policy in data.policies
	fits_caller(policy)
	policy.type in {"all", input.type}
	fits_name(policy.pattern)
}

speaking_of_target contains place if {
	some place, policy in data.policies
	fits_caller(policy)
	policy.effect == "allow"
}

speaking_of_target contains place if {
	some place, policy in data.policies
	fits_caller(policy)
	policy.effect == "deny"
	policy.type == "all"
	policy.pattern == null
}

fits_caller(policy) if {
	policy.target in {null, input.target}
	some subject in policy.subjects
	subject in callers
}

callers := {["everyone"], ["role", input.role], ["user", input.sub]} | {["group", group] | some group in input.groups}

fits_name(pattern) if pattern == null

fits_name(pattern) if regex.match(pattern, input.name)

# The first of the policies at these places. Nothing is said if there is none.
verdict(places) := {"effect": policy.effect, "policy": policy.id, "rank": place, "reason": "matched"} if {
	[_, _, _, place] := min({reading_order(data.policies[i], i) | some i in places})
	policy := data.policies[place]
}

reading_order(policy, i) := [0 - policy.priority, {"deny": 0, "allow": 1}[policy.effect], policy.id, i]
