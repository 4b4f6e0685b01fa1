from typing import TypeAlias

BrokerId: TypeAlias = int
GroupId: TypeAlias = str
ProducerId: TypeAlias = int
TopicName: TypeAlias = str
TransactionalId: TypeAlias = str
