package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// kafka-go produces without idempotence, and its transactions hold offsets only: its records bear no
// producer's identity.
type segment struct {
	run
	client *kafka.Client
}

func kafkaGo(r run) {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	s := segment{r, clientOver(transport, r)}
	s.topics()
	s.topicConfigs()
	s.brokerConfigs()
	s.produce()
	s.placement()
	s.cluster()
	s.groups()
	s.transactions()
	s.afterGroups()
	s.codecs()
	s.deletion()
}

func clientOver(transport *kafka.Transport, r run) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(r.bootstrap), Timeout: patience, Transport: transport}
}

func (s segment) topics() {
	create := func(label string, partitions, factor int, configs ...kafka.ConfigEntry) string {
		topic := kafka.TopicConfig{
			Topic: s.name(label), NumPartitions: partitions, ReplicationFactor: factor, ConfigEntries: configs,
		}
		made := must(s.client.CreateTopics(s.ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{topic}}))
		return outcome(made.Errors[topic.Topic])
	}
	s.note("create with too many replicas", create("in", 2, 3))
	s.note("create with nonsense", create("in", 2, 1, kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "x"}))
	s.note("create", create("in", 2, 1, kafka.ConfigEntry{ConfigName: "max.message.bytes", ConfigValue: "500000"}))
	s.note("create again", create("in", 2, 1))
	s.note("create another", create("codecs", 1, 1))
	for _, count := range []int32{3, 2} {
		row := kafka.TopicPartitionsConfig{Name: s.name("in"), Count: count}
		grown := must(s.client.CreatePartitions(s.ctx, &kafka.CreatePartitionsRequest{Topics: []kafka.TopicPartitionsConfig{row}}))
		s.note(fmt.Sprint("partitions ", count), outcome(grown.Errors[row.Name]))
	}
	s.note("topics", eventually(s.listed, []string{s.name("codecs") + " 1 NONE", s.name("in") + " 3 NONE"}))
}

// listed are the topics that there are now. A transport answers from memory for some seconds, and the
// setting of how long is also how long it waits for the broker.
func (s segment) listed() any {
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	saw := []string{}
	for _, each := range must(clientOver(transport, s.run).Metadata(s.ctx, &kafka.MetadataRequest{})).Topics {
		saw = append(saw, fmt.Sprint(each.Name, " ", len(each.Partitions), " ", outcome(each.Error)))
	}
	return s.mine(saw)
}

func (s segment) values(kind kafka.ResourceType, name string, keys ...string) any {
	found := must(s.client.DescribeConfigs(s.ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{
			{ResourceType: kind, ResourceName: name, ConfigNames: keys},
		},
		IncludeSynonyms: true, IncludeDocumentation: true,
	})).Resources[0]
	saw := []string{}
	for _, each := range found.ConfigEntries {
		saw = append(saw, fmt.Sprint(each.ConfigName, " ", each.ConfigValue, " ", each.ConfigSource, " ", each.ConfigType))
	}
	slices.Sort(saw)
	return []any{outcome(found.Error), saw}
}

func (s segment) alter(kind kafka.ResourceType, name string, configs map[string]string) string {
	resource := kafka.AlterConfigRequestResource{ResourceType: kind, ResourceName: name}
	for key, value := range configs {
		resource.Configs = append(resource.Configs, kafka.AlterConfigRequestConfig{Name: key, Value: value})
	}
	request := &kafka.AlterConfigsRequest{Resources: []kafka.AlterConfigRequestResource{resource}}
	altered := must(s.client.AlterConfigs(s.ctx, request))
	return outcome(altered.Errors[kafka.AlterConfigsResponseResource{Type: int8(kind), Name: name}])
}

func (s segment) topicConfigs() {
	topic, absent := s.name("in"), s.name("absent")
	seen := func(retention, bytes string) any {
		return eventually(func() any {
			return s.values(kafka.ResourceTypeTopic, topic, "retention.ms", "segment.bytes")
		}, []any{"NONE", []string{"retention.ms " + retention, "segment.bytes " + bytes}})
	}
	alter := func(name, key, value string) string {
		return s.alter(kafka.ResourceTypeTopic, name, map[string]string{key: value})
	}
	s.note("alter one", alter(topic, "retention.ms", "90000000"))
	s.note("alter one: then", seen("90000000 1 5", "1073741824 5 3"))
	s.note("alter another", alter(topic, "segment.bytes", "2000000"))
	s.note("alter another: then", seen("604800000 5 5", "2000000 1 3"))
	s.note("alter to nonsense", alter(topic, "retention.ms", "x"))
	s.note("alter an unknown one", alter(topic, "no.such", "1"))
	s.note("alter an absent topic", alter(absent, "retention.ms", "1"))
	for _, label := range []string{"in", "absent"} {
		altered := must(s.client.IncrementalAlterConfigs(s.ctx, &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: s.name(label),
				Configs: []kafka.IncrementalAlterConfigsRequestConfig{
					{Name: "retention.ms", Value: "80000000", ConfigOperation: kafka.ConfigOperationSet},
					{Name: "segment.bytes", ConfigOperation: kafka.ConfigOperationDelete},
				},
			}},
		}))
		s.note("alter incrementally "+label, outcome(altered.Resources[0].Error))
	}
	s.note("alter incrementally: then", seen("80000000 1 5", "1073741824 5 3"))
	s.note("describe an absent topic", s.values(kafka.ResourceTypeTopic, absent, "retention.ms"))
}

func (s segment) brokerConfigs() {
	const key, broker = "compression.lz4.level", "1"
	seen := func(value string) any {
		return eventually(func() any {
			return s.values(kafka.ResourceTypeBroker, broker, key)
		}, []any{"NONE", []string{key + " " + value}})
	}
	s.note("alter the broker", s.alter(kafka.ResourceTypeBroker, broker, map[string]string{key: "5"}))
	s.note("alter the broker: then", seen("5 2 3"))
	s.note("alter what is read-only", s.alter(kafka.ResourceTypeBroker, broker, map[string]string{"num.partitions": "5"}))
	s.note("take it back", s.alter(kafka.ResourceTypeBroker, broker, nil))
	s.note("take it back: then", seen("9 5 3"))
}

func (s segment) produce() {
	writer := &kafka.Writer{
		Addr: s.client.Addr, Topic: s.name("in"), RequiredAcks: kafka.RequireAll, Transport: s.client.Transport,
		BatchTimeout: time.Millisecond, Balancer: toFirst{},
	}
	defer writer.Close()
	for number, value := range []string{"a", "b", "c"} {
		check(writer.WriteMessages(s.ctx, kafka.Message{
			Key: []byte("key"), Value: []byte(value), Time: time.UnixMilli(firstTimestamp + int64(number)),
			Headers: []kafka.Header{{Key: "number", Value: []byte{byte(number)}}},
		}))
	}
	topic := s.name("in")
	listed := must(s.client.ListOffsets(s.ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {
			kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0), kafka.TimeOffsetOf(0, time.UnixMilli(firstTimestamp+1)),
		}},
		IsolationLevel: kafka.ReadCommitted,
	})).Topics[topic][0]
	s.note("offsets of records", []any{listed.FirstOffset, listed.LastOffset, len(listed.Offsets), outcome(listed.Error)})
}

// toFirst puts all into a topic's first partition.
type toFirst struct{}

func (toFirst) Balance(kafka.Message, ...int) int { return 0 }

func (s segment) placement() {
	for _, brokers := range [][]int{{1}, {7}, {1, 7}, {}} {
		for _, label := range []string{"in", "absent"} {
			altered := must(s.client.AlterPartitionReassignments(s.ctx, &kafka.AlterPartitionReassignmentsRequest{
				Topic:       s.name(label),
				Assignments: []kafka.AlterPartitionReassignmentsRequestAssignment{{BrokerIDs: brokers}},
				Timeout:     patience,
			}))
			step := fmt.Sprint("put ", label, " on ", brokers)
			s.note(step, []string{outcome(altered.Error), outcome(altered.PartitionResults[0].Error)})
		}
	}
	topics := map[string]kafka.ListPartitionReassignmentsRequestTopic{s.name("in"): {PartitionIndexes: []int{0}}}
	for _, each := range []map[string]kafka.ListPartitionReassignmentsRequestTopic{topics, nil} {
		request := &kafka.ListPartitionReassignmentsRequest{Topics: each, Timeout: patience}
		listed := must(s.client.ListPartitionReassignments(s.ctx, request))
		s.note(fmt.Sprint("reassignments of ", len(each)), []any{outcome(listed.Error), len(listed.Topics)})
	}
	for _, label := range []string{"in", "absent"} {
		elected := must(s.client.ElectLeaders(s.ctx, &kafka.ElectLeadersRequest{
			Topic: s.name(label), Partitions: []int{0}, Timeout: patience,
		}))
		s.note("elect "+label, []string{outcome(elected.Error), outcome(elected.PartitionResults[0].Error)})
	}
}

func (s segment) cluster() {
	found := must(s.client.Metadata(s.ctx, &kafka.MetadataRequest{Topics: []string{s.name("in")}}))
	partition := found.Topics[0].Partitions[0]
	s.note("cluster", []any{
		found.ClusterID != "", found.Controller.ID, len(found.Brokers),
		partition.Leader.ID, len(partition.Replicas), len(partition.Isr), len(partition.OfflineReplicas),
	})
	versions := must(s.client.ApiVersions(s.ctx, &kafka.ApiVersionsRequest{}))
	s.note("versions", outcome(versions.Error))
}

func (s segment) groups() {
	group, topic := s.name("group"), s.name("in")
	s.coordinator(group, kafka.CoordinatorKeyTypeConsumer)
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{s.bootstrap}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 100 * time.Millisecond, IsolationLevel: kafka.ReadCommitted,
	})
	for range 3 {
		each := must(reader.FetchMessage(s.ctx))
		s.note("consumed", []any{
			each.Partition, each.Offset, string(each.Key), string(each.Value), len(each.Headers), each.Time.UnixMilli(),
		})
		check(reader.CommitMessages(s.ctx, each))
	}
	described := must(s.client.DescribeGroups(s.ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})).Groups[0]
	member := described.Members[0]
	s.note("a group with a member", []any{
		outcome(described.Error), described.GroupState, len(described.Members),
		member.MemberMetadata.Topics, member.MemberAssignments.Topics,
	})
	s.note("delete a group with members", s.deleteGroup())
	check(reader.Close())
}

// coordinator waits until the broker has found where the group or transaction is kept.
func (s segment) coordinator(key string, kind kafka.CoordinatorKeyType) {
	s.note("coordinator", eventually(func() any {
		found := must(s.client.FindCoordinator(s.ctx, &kafka.FindCoordinatorRequest{Key: key, KeyType: kind}))
		return []any{outcome(found.Error), found.Coordinator.NodeID}
	}, []any{"NONE", 1}))
}

func (s segment) offsets() any {
	request := &kafka.OffsetFetchRequest{GroupID: s.name("group"), Topics: map[string][]int{s.name("in"): {0, 1}}}
	found := must(s.client.OffsetFetch(s.ctx, request))
	saw := []string{outcome(found.Error)}
	for _, each := range found.Topics[s.name("in")] {
		saw = append(saw, fmt.Sprint(each.Partition, " ", each.CommittedOffset, " ", each.Metadata, " ", outcome(each.Error)))
	}
	return saw
}

func (s segment) transactions() {
	id, group := s.name("transaction"), s.name("group")
	s.coordinator(id, kafka.CoordinatorKeyTypeTransaction)
	for _, commit := range []bool{false, true} {
		var made *kafka.InitProducerIDResponse
		s.note("init", eventually(func() any {
			made = must(s.client.InitProducerID(s.ctx, &kafka.InitProducerIDRequest{
				TransactionalID: id, TransactionTimeoutMs: 60_000, ProducerID: -1, ProducerEpoch: -1,
			}))
			return outcome(made.Error)
		}, "NONE"))
		producer, epoch := made.Producer.ProducerID, made.Producer.ProducerEpoch
		added := must(s.client.AddOffsetsToTxn(s.ctx, &kafka.AddOffsetsToTxnRequest{
			TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch, GroupID: group,
		}))
		offset := kafka.TxnOffsetCommit{Partition: 0, Offset: 2, Metadata: "in a transaction"}
		committed := must(s.client.TxnOffsetCommit(s.ctx, &kafka.TxnOffsetCommitRequest{
			TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch, GroupID: group, GenerationID: -1,
			Topics: map[string][]kafka.TxnOffsetCommit{s.name("in"): {offset}},
		}))
		ended := must(s.client.EndTxn(s.ctx, &kafka.EndTxnRequest{
			TransactionalID: id, ProducerID: producer, ProducerEpoch: epoch, Committed: commit,
		}))
		s.note(fmt.Sprint("transaction ", commit), []string{
			outcome(added.Error), outcome(committed.Topics[s.name("in")][0].Error), outcome(ended.Error), fmt.Sprint(epoch),
		})
		expected := map[bool]string{false: "0 3  NONE", true: "0 2 in a transaction NONE"}[commit]
		s.note("offsets", eventually(s.offsets, []string{"NONE", expected, "1 -1  NONE"}))
	}
}

func (s segment) afterGroups() {
	group, topic := s.name("group"), s.name("in")
	s.note("group", eventually(func() any {
		found := must(s.client.DescribeGroups(s.ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})).Groups[0]
		return []any{outcome(found.Error), found.GroupState, len(found.Members)}
	}, []any{"NONE", "Empty", 0}))
	s.note("groups", s.listedGroups())
	request := &kafka.OffsetDeleteRequest{GroupID: group, Topics: map[string][]int{topic: {0, 7}}}
	deleted := must(s.client.OffsetDelete(s.ctx, request))
	saw := []string{outcome(deleted.Error)}
	for _, each := range deleted.Topics[topic] {
		saw = append(saw, fmt.Sprint(each.Partition, " ", outcome(each.Error)))
	}
	slices.Sort(saw[1:])
	s.note("delete offsets", saw)
	s.note("offsets then", s.offsets())
	s.note("delete a group", s.deleteGroup())
	s.note("delete an absent group", s.deleteGroup())
	s.note("groups then", s.listedGroups())
}

func (s segment) deleteGroup() string {
	group := s.name("group")
	deleted := must(s.client.DeleteGroups(s.ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}}))
	return outcome(deleted.Errors[group])
}

func (s segment) listedGroups() []string {
	listed := must(s.client.ListGroups(s.ctx, &kafka.ListGroupsRequest{}))
	check(listed.Error)
	saw := []string{}
	for _, each := range listed.Groups {
		saw = append(saw, each.GroupID+" "+each.ProtocolType)
	}
	return s.mine(saw)
}

func (s segment) codecs() {
	topic := s.name("codecs")
	for codec := kafka.Gzip; codec <= kafka.Zstd; codec++ {
		value := strings.Repeat(codec.String()+" ", 20)
		made := must(s.client.Produce(s.ctx, &kafka.ProduceRequest{
			Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte(value))}),
		}))
		s.note("compress "+codec.String(), []any{outcome(made.Error), made.BaseOffset})
	}
	saw := []string{}
	for len(saw) < int(kafka.Zstd) {
		saw = append(saw, s.fetch(topic, int64(len(saw)))...)
	}
	s.note("compressed", saw)
}

func (s segment) fetch(topic string, offset int64) []string {
	fetched := must(s.client.Fetch(s.ctx, &kafka.FetchRequest{
		Topic: topic, Offset: offset, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Second,
		IsolationLevel: kafka.ReadCommitted,
	}))
	check(fetched.Error)
	saw := []string{}
	for {
		each, err := fetched.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return saw
		}
		check(err)
		saw = append(saw, string(must(io.ReadAll(each.Value))))
	}
}

func (s segment) deletion() {
	remove := func(label string) func() any {
		return func() any {
			request := &kafka.DeleteTopicsRequest{Topics: []string{s.name(label)}}
			return outcome(must(s.client.DeleteTopics(s.ctx, request)).Errors[s.name(label)])
		}
	}
	s.note("delete a topic", remove("in")())
	s.note("delete it again", eventually(remove("in"), "UNKNOWN_TOPIC_OR_PARTITION"))
	s.note("delete another", remove("codecs")())
	s.note("topics then", eventually(s.listed, []string{}))
}
