"""gRPC in front, by the stubs of a2a-sdk 1.3.0: every method, to an agent of each SDK; health, reflection, the schema."""

from pathlib import Path

import grpc
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc as stubs
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from stage import HERE, SDKS

SCHEMA = HERE.parent.parent / "crates/grpc/src/schema.binpb"
PATIENCE = 60
DONE = pb.TASK_STATE_COMPLETED


def message(text, **more):
    return pb.Message(message_id="m-1", role=pb.ROLE_USER, parts=[pb.Part(text=text)], **more)


class Client:
    """Stubs for one agent, with the credential of `alice`."""

    def __init__(self, channel, token, tenant):
        self.stubs, self.metadata, self.tenant = stubs.A2AServiceStub(channel), [("authorization", f"Bearer {token}")], tenant

    def call(self, method, request):
        request.tenant = self.tenant
        return getattr(self.stubs, method)(request, metadata=self.metadata, timeout=PATIENCE)

    def code(self, method, request):
        """The status of a call that is refused."""
        try:
            answer = self.call(method, request)
            list(answer) if hasattr(answer, "__iter__") else answer
        except grpc.RpcError as refused:
            return refused.code()
        return grpc.StatusCode.OK


def methods(client, speaks_1_0):
    """What each method did, and what it should have."""
    made = client.call("SendMessage", pb.SendMessageRequest(message=message("made")))
    yield "SendMessage", made.task.status.state, DONE
    yield "artifact", made.task.artifacts[0].parts[0].text, "made"
    events = list(client.call("SendStreamingMessage", pb.SendMessageRequest(message=message("stream 3"))))
    states = [event.status_update.status.state for event in events if event.HasField("status_update")]
    yield "SendStreamingMessage", (events[0].HasField("task"), states[-1]), (True, DONE)
    yield "its updates", states.count(pb.TASK_STATE_WORKING) >= 3, True
    task = made.task.id
    yield "GetTask", client.call("GetTask", pb.GetTaskRequest(id=task)).status.state, DONE
    yield "GetTask of none", client.code("GetTask", pb.GetTaskRequest(id="none")), grpc.StatusCode.NOT_FOUND
    yield "CancelTask", client.code("CancelTask", pb.CancelTaskRequest(id=task)), grpc.StatusCode.FAILED_PRECONDITION
    yield "SubscribeToTask", client.code("SubscribeToTask", pb.SubscribeToTaskRequest(id=task)), grpc.StatusCode.UNIMPLEMENTED
    asked = client.call("SendMessage", pb.SendMessageRequest(message=message("ask"))).task
    yield "input required", asked.status.state, pb.TASK_STATE_INPUT_REQUIRED
    listed = client.code("ListTasks", pb.ListTasksRequest())
    yield "ListTasks", listed, grpc.StatusCode.OK if speaks_1_0 else grpc.StatusCode.UNIMPLEMENTED


def run(stage):
    gateway = stage.gateway()
    agents = stage.agents(*SDKS)
    channel = grpc.insecure_channel(f"127.0.0.1:{gateway.port}")
    failures = []
    with channel:
        for name, agent in agents.items():
            gateway.seat(agent)
            client = Client(channel, gateway.tokens["alice"], name)
            for what, found, expected in methods(client, "1.0" in SDKS[name]):
                print(f"{name} {what} {'ok' if found == expected else 'FAILED'}")
                if found != expected:
                    failures.append(f"{name} {what}: {found}, not {expected}")
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        if health.status != health_pb2.HealthCheckResponse.SERVING:
            failures.append(f"the health is {health}")
        reflected = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        found = [method.name for method in reflected.FindServiceByName("lf.a2a.v1.A2AService").methods]
        expected = [method.name for method in pb.DESCRIPTOR.services_by_name["A2AService"].methods]
        if found != expected:
            failures.append(f"reflection shows {found}")
    return failures + schema_differences(SCHEMA)


def schema_differences(path: Path):
    """The messages and methods in which the embedded schema differs from the package's."""
    embedded = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    ours = next(file for file in embedded.file if file.package == "lf.a2a.v1")
    theirs = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(theirs)
    wanted = {one.name: one for kind in ("message_type", "enum_type", "service") for one in map(plain, getattr(theirs, kind))}
    found = {one.name: one for kind in ("message_type", "enum_type", "service") for one in getattr(ours, kind)}
    return [f"schema.binpb differs in {name}" for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]


def plain(described):
    """The same without options, but for that of maps."""
    for name in ("field", "method", "nested_type"):
        for one in getattr(described, name, ()):
            plain(one)
    if not (hasattr(described, "options") and getattr(described.options, "map_entry", False)):
        described.ClearField("options")
    return described
