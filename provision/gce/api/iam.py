"""Questions to the APIs that decide what a project and its user may do: IAM, billing, organization policies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from provision.gce.api.client import GOOGLE_APIS, Api, ApiError, Json

_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
_BILLING = "https://cloudbilling.googleapis.com"
_POLICIES = "https://orgpolicy.googleapis.com"
_IAM = "https://iam.googleapis.com"
_IAP = "https://iap.googleapis.com"
_ACCOUNTS = ".iam.gserviceaccount.com"
_SERVICE_USAGE = "https://serviceusage.googleapis.com"


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


def project_of_account(api: Api, email: str) -> str:
    """Return the project of a service account; the address of the default account does not show it.

    Source: https://cloud.google.com/iam/docs/service-account-types#user-managed.
    """
    domain = email.partition("@")[2]
    if not domain.endswith(_ACCOUNTS):
        return api.project
    project, _, organization = domain.removesuffix(_ACCOUNTS).partition(".")
    return f"{organization}:{project}" if organization else project


def permitted_on_account(api: Api, email: str, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the caller has on a service account.

    Source: iam.projects.serviceAccounts.testIamPermissions.

    Raises:
        ApiError: the call failed, for example because the account does not exist.
    """
    return _test(api, _IAM, _account_path(api, email), permissions)


def permitted_tunnels(api: Api, token: str, permissions: Collection[str]) -> set[str]:
    """Return those of `permissions` that the account of an access token has on all tunnels to instances.

    Source: iap.testIamPermissions; the resource is as in
    https://cloud.google.com/iap/docs/managing-access#managing_access_via_the_api.

    Raises:
        ApiError: the call failed.
    """
    return _test(api, _IAP, f"/v1/projects/{api.project}/iap_tunnel", permissions, token=token)


def account_of(api: Api, token: str) -> str:
    """Return the address of the account of an access token; empty if it cannot be determined.

    Source: oauth2.userinfo.get.
    """
    try:
        return str(api.ask(GOOGLE_APIS, "/oauth2/v2/userinfo", token=token).get("email", ""))
    except ApiError:
        return ""


def is_enabled(api: Api, service: str) -> bool:
    """Return whether the project has enabled an API, ``iap.googleapis.com``.

    Source: serviceusage.services.get.

    Raises:
        ApiError: the call failed, for example because the caller may not ask.
    """
    return api.ask(_SERVICE_USAGE, f"/v1/projects/{api.project}/services/{service}").get("state") == "ENABLED"


def service_account(api: Api, email: str) -> Json | None:
    """Return a service account; None if it does not exist.

    Source: iam.projects.serviceAccounts.get.

    Raises:
        ApiError: the call failed.
    """
    try:
        return api.ask(_IAM, _account_path(api, email))
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def project_policy(api: Api) -> Json:
    """Return the IAM policy of the project.

    Source: cloudresourcemanager.projects.getIamPolicy.

    Raises:
        ApiError: the call failed, for example because the caller may not read it.
    """
    return api.ask(_RESOURCE_MANAGER, f"/v1/projects/{api.project}:getIamPolicy", {})


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


def _account_path(api: Api, email: str) -> str:
    return f"/v1/projects/{project_of_account(api, email)}/serviceAccounts/{email}"


def _test(api: Api, service: str, path: str, permissions: Collection[str], *, token: str = "") -> set[str]:
    answer = api.ask(service, f"{path}:testIamPermissions", {"permissions": sorted(permissions)}, token=token)
    return set(answer.get("permissions", ()))
