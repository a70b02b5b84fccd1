"""What a program does with the client that openapi-python-client generates: use.py <origin> <e-mail> <password>."""

import sys

from portcullis_client import AuthenticatedClient, Client
from portcullis_client.api.accounts import log_in
from portcullis_client.api.analysis import explain_decision, list_access
from portcullis_client.api.audit import list_changes, list_decisions
from portcullis_client.api.gateway import get_readiness
from portcullis_client.api.policies import create_policy, delete_policy, get_policy, list_policies
from portcullis_client.api.sessions import recycle_sessions
from portcullis_client.api.targets import create_target
from portcullis_client.api.users import create_user, list_users, update_user
from portcullis_client.models import (
    Account,
    HttpTarget,
    NewHttpTarget,
    NewPolicy,
    NewPolicySubject,
    NewUser,
    PolicyQuestion,
    PrincipalByUser,
    Problem,
    Recycling,
    UserUpdate,
)

origin, email, password = sys.argv[1:]

ready = get_readiness.sync(client=Client(base_url=origin))
assert ready.ready and ready.checks["accepting"], ready
login = log_in.sync(client=Client(base_url=origin), body=Account(email=email, password=password))
assert login.user.email == email
client = AuthenticatedClient(base_url=origin, token=login.token)

user = create_user.sync(client=client, body=NewUser(email="python@example.com", password="a long passphrase"))
changed = update_user.sync(client=client, id=user.id, body=UserUpdate(role="developer", groups=["a"]))
assert changed.groups == ["a"], changed
page = list_users.sync_detailed(client=client, limit=1)
assert len(page.parsed) == 1 and 'rel="next"' in page.headers["link"]

target = create_target.sync(client=client, body=NewHttpTarget(name="python", url="http://127.0.0.1:9/mcp"))
assert isinstance(target, HttpTarget), target
policy = create_policy.sync(
    client=client,
    portcullis_reason="to try a client",
    body=NewPolicy(
        name="Developers call echo",
        target_id=target.id,
        resource_type="tool",
        resource_pattern="^echo$",
        effect="allow",
        priority=100,
        subjects=[NewPolicySubject(subject_type="role", subject_value="developer")],
    ),
)
assert policy.subjects[0].subject_value == "developer", policy
assert [one.id for one in list_policies.sync(client=client)] == [policy.id]
question = PolicyQuestion(
    principal=PrincipalByUser(user=user.id), target="python", resource_type="tool", resource_name="echo"
)
explained = explain_decision.sync(client=client, body=question)
assert explained.policy.id == policy.id, explained
assert isinstance(list_access.sync(client=client), list)
assert list_decisions.sync(client=client) == []

refused = recycle_sessions.sync(client=client, body=Recycling())
assert isinstance(refused, Problem) and '"all": true' in refused.errors[0].message, refused
assert recycle_sessions.sync(client=client, body=Recycling(all_=True)).recycled == 0

assert delete_policy.sync_detailed(client=client, id=policy.id).status_code == 204
missing = get_policy.sync(client=client, id=policy.id)
assert isinstance(missing, Problem) and missing.code == "not_found", missing
assert "to try a client" in [change.reason for change in list_changes.sync(client=client)]
