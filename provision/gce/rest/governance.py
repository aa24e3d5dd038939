"""Questions to the APIs that decide what a project and its user may do: IAM, billing, organization policies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from provision.gce.rest.api import Api, ApiError, Json

_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
_BILLING = "https://cloudbilling.googleapis.com"
_POLICIES = "https://orgpolicy.googleapis.com"
_IAM = "https://iam.googleapis.com"


def permitted(api: Api, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the caller has in the project.

    Source: cloudresourcemanager.projects.testIamPermissions.

    Raises:
        ApiError: the call failed, for example because that API is disabled.
    """
    return _test(api, _RESOURCE_MANAGER, f"/v1/projects/{api.project}", permissions)


def permitted_on_subnetwork(api: Api, path: str, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the caller has on ``projects/P/regions/R/subnetworks/S``.

    Source: compute.subnetworks.testIamPermissions.

    Raises:
        ApiError: the call failed.
    """
    answer = api.ask(api.endpoint, f"/compute/v1/{path}/testIamPermissions", {"permissions": sorted(permissions)})
    return set(answer.get("permissions", ()))


def permitted_on_account(api: Api, email: str, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the caller has on a service account.

    Source: iam.projects.serviceAccounts.testIamPermissions.

    Raises:
        ApiError: the call failed, for example because the account does not exist.
    """
    return _test(api, _IAM, f"/v1/projects/-/serviceAccounts/{email}", permissions)


def service_account(api: Api, email: str) -> Json | None:
    """Return a service account; None if it does not exist.

    Source: iam.projects.serviceAccounts.get.

    Raises:
        ApiError: the call failed.
    """
    try:
        return api.ask(_IAM, f"/v1/projects/-/serviceAccounts/{email}")
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def billing_info(api: Api) -> Json:
    """Return the name of the project's billing account, and whether it is open.

    Source: cloudbilling.projects.getBillingInfo.

    Raises:
        ApiError: the call failed.
    """
    return api.ask(_BILLING, f"/v1/projects/{api.project}/billingInfo")


def effective_policies(api: Api, constraints: Sequence[str]) -> dict[str, list[Json]]:
    """Return the rules of the effective policies of the project, by constraint.

    A constraint that does not exist has no rules.

    Source: orgpolicy.projects.policies.getEffectivePolicy.

    Raises:
        ApiError: the policies cannot be read.
    """

    def rules(constraint: str) -> list[Json]:
        try:
            policy = api.ask(_POLICIES, f"/v2/projects/{api.project}/policies/{constraint}:getEffectivePolicy")
        except ApiError as error:
            if error.status not in (400, 404):
                raise
            return []
        return list(policy.get("spec", {}).get("rules", ()))

    answers = api.together(*(lambda constraint=constraint: rules(constraint) for constraint in constraints))
    return dict(zip(constraints, answers, strict=True))


def _test(api: Api, service: str, path: str, permissions: Collection[str]) -> set[str]:
    answer = api.ask(service, f"{path}:testIamPermissions", {"permissions": sorted(permissions)})
    return set(answer.get("permissions", ()))
