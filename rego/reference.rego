# The decision rule, written for review. This page is the whole specification. gateway.rego gives the same answers faster, and
# README.md beside this file says how we know that they are the same.
#
# The rule:
#
#   1. A policy matches a request if its target, its subjects, its resource type and its pattern all match.
#   2. Policies are evaluated in a fixed order: higher priority first, then deny before allow, then lower id.
#   3. The first policy that matches decides. If no policy matches, the answer is deny.
#   4. A question can be about a target as a whole, without an object. Then an allow matches if its target and its
#      subjects match, whatever objects it names. A deny must also cover all objects.
#
# The rule reads two documents:
#
#   input            the request
#     sub            id of the calling user
#     role, groups   role and groups of that user
#     target         id of the target
#     type, name     the object: a "tool", "resource" or "prompt", and its name (for a resource, its URI)
#
#   data.policies    the enabled policies
#     id             unique
#     name           for people; it decides nothing
#     effect         "allow" or "deny"
#     priority       integer
#     target         id of one target; null: every target
#     type           "tool", "resource", "prompt" or "all"
#     pattern        RE2, searched for in the name; null: every name
#     subjects       list of ["everyone"], ["role", name], ["group", name] or ["user", id]
package portcullis.reference

# METADATA
# description: May this caller use this object of this target?
# entrypoint: true
default decision := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

decision := verdict(matching_object)

# METADATA
# description: May this caller use this target at all?
# entrypoint: true
default target := {"effect": "deny", "policy": null, "rank": null, "reason": "default"}

target := verdict(matching_target)

# Positions of the policies that match a question about an object.
matching_object contains position if {
	some position, policy in data.policies
	matches_target(policy)
	matches_caller(policy)
	matches_type(policy)
	matches_name(policy)
}

# Positions of the policies that match a question about a target as a whole. An allow matches, whatever objects it names, because
# a caller who may use one object must be able to use the target.
matching_target contains position if {
	some position, policy in data.policies
	matches_target(policy)
	matches_caller(policy)
	policy.effect == "allow"
}

# A deny matches only if it covers all objects. A narrower deny says nothing about the other objects, so it is ignored here.
matching_target contains position if {
	some position, policy in data.policies
	matches_target(policy)
	matches_caller(policy)
	policy.effect == "deny"
	policy.type == "all"
	policy.pattern == null
}

matches_target(policy) if policy.target in {null, input.target}

matches_caller(policy) if {
	some subject in policy.subjects
	subject in caller
}

matches_type(policy) if policy.type in {"all", input.type}

matches_name(policy) if policy.pattern == null

matches_name(policy) if regex.match(policy.pattern, input.name)

# Every subject that stands for this caller.
caller := {["everyone"], ["role", input.role], ["user", input.sub]} | {["group", group] | some group in input.groups}

# What the first of these policies decides. If there are none, this is undefined, and the default above is the answer.
verdict(positions) := {"effect": policy.effect, "policy": policy.id, "rank": first, "reason": "matched"} if {
	[_, _, _, first] := min({evaluation_order(data.policies[position], position) | some position in positions})
	policy := data.policies[first]
}

# Rego compares lists member by member, so the policy with the least of these lists is evaluated first.
evaluation_order(policy, position) := [0 - policy.priority, {"deny": 0, "allow": 1}[policy.effect], policy.id, position]
