package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type found struct {
	Leader        int32     `json:"leader"`
	HighWatermark int64     `json:"high_watermark"`
	End           int64     `json:"end"`
	Refused       string    `json:"refused"`
	Pages         [][]int32 `json:"pages"`
}

// Prints the quorum's state, the error for an unknown broker, and the topic's partitions in pages of two. A feature
// keeps its level.
func admin(ctx context.Context, topic string) {
	asking := client()
	defer asking.Close()
	quorum := kmsg.NewPtrDescribeQuorumRequest()
	log := kmsg.NewDescribeQuorumRequestTopic()
	log.Topic = "__cluster_metadata"
	log.Partitions = []kmsg.DescribeQuorumRequestTopicPartition{kmsg.NewDescribeQuorumRequestTopicPartition()}
	quorum.Topics = append(quorum.Topics, log)
	state, err := quorum.RequestWith(ctx, asking)
	check(err)
	of := state.Topics[0].Partitions[0]
	check(kerr.ErrorForCode(of.ErrorCode))

	updated, err := kadm.NewClient(asking).UpdateFeatures(ctx, false,
		kadm.FeatureUpdate{Feature: "transaction.version", MaxVersionLevel: 2, UpgradeType: 1})
	check(err)
	check(updated.Error())

	unregister := kmsg.NewPtrUnregisterBrokerRequest()
	unregister.BrokerID = 7
	refused, err := unregister.RequestWith(ctx, asking)
	check(err)

	printed := found{of.LeaderID, of.HighWatermark, of.CurrentVoters[0].LogEndOffset,
		kerr.ErrorForCode(refused.ErrorCode).Error(), nil}
	describe := kmsg.NewPtrDescribeTopicPartitionsRequest()
	named := kmsg.NewDescribeTopicPartitionsRequestTopic()
	named.Topic = topic
	describe.Topics = append(describe.Topics, named)
	describe.ResponsePartitionLimit = 2
	for {
		page, err := describe.RequestWith(ctx, asking)
		check(err)
		numbers := []int32{}
		for _, partition := range page.Topics[0].Partitions {
			numbers = append(numbers, partition.Partition)
		}
		printed.Pages = append(printed.Pages, numbers)
		if page.NextCursor == nil {
			break
		}
		next := kmsg.NewDescribeTopicPartitionsRequestCursor()
		next.Topic, next.Partition = page.NextCursor.Topic, page.NextCursor.Partition
		describe.Cursor = &next
	}
	check(json.NewEncoder(os.Stdout).Encode(printed))
}
