// RocketMQ 5's Go client: ENDPOINTS SECONDS FILE JOB..., see the README. It has no push consumer.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const attempts = 3

var (
	endpoints = os.Args[1]
	allDead   = os.Args[3]
	until     time.Time
	lock      sync.Mutex
)

type job struct {
	name, kind, topic, group string
	count, done              int
}

func (j *job) say(what, body string, atMs int64, attempt int) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Println(j.name, what, body, atMs, attempt)
}

func (j *job) wanted() int {
	switch j.kind {
	case "transaction":
		return j.count * 9 / 10
	case "dead", "deadfifo":
		return j.count/10*9 + j.count/10*attempts
	}
	return j.count
}

// fails says whether it is a message that its consumer never takes.
func (j *job) fails(body string) bool {
	return strings.HasPrefix(j.kind, "dead") && strings.HasSuffix(body, "0")
}

// awaitsDead says whether to go on asking, until the parent creates the file: all dead letters are there.
func (j *job) awaitsDead() bool {
	if !strings.HasPrefix(j.kind, "dead") {
		return false
	}
	_, err := os.Stat(allDead)
	return err != nil
}

func config(group string) *rmq.Config {
	return &rmq.Config{Endpoint: endpoints, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

// patient makes a client that waits ten seconds for each answer instead of three.
func patient(config *rmq.Config, options ...rmq.ClientOption) (rmq.Client, error) {
	return rmq.NewClientConcrete(config, append(options, rmq.WithQueryRouteTimeout(10*time.Second))...)
}

// started makes clients until one starts: a connection is given up after five seconds, and a cold proxy may take longer.
func started[C interface{ Start() error }](create func() (C, error)) (C, error) {
	for {
		client, err := create()
		if err != nil {
			return client, err
		}
		if err = client.Start(); err == nil || time.Now().After(until) {
			return client, err
		}
		fmt.Fprintln(os.Stderr, "start again:", err)
		time.Sleep(500 * time.Millisecond)
	}
}

func (j *job) newProducer() (rmq.Producer, error) {
	return rmq.NewProducer(config(""), rmq.WithClientFunc(patient), rmq.WithTopics(j.topic),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(*rmq.MessageView) rmq.TransactionResolution { return rmq.COMMIT },
		}))
}

func (j *job) newConsumer() (rmq.SimpleConsumer, error) {
	return rmq.NewSimpleConsumer(config(j.group), rmq.WithClientFuncForSimpleConsumer(patient),
		rmq.WithAwaitDuration(6*time.Second),
		rmq.WithSubscriptionExpressions(map[string]*rmq.FilterExpression{j.topic: rmq.SUB_ALL}))
}

func (j *job) run() error {
	producer, err := started(j.newProducer)
	if err != nil {
		return err
	}
	for i := 0; i < j.count; i++ {
		if err = j.send(producer, i); err != nil {
			return err
		}
	}
	return j.receive()
}

func (j *job) send(producer rmq.Producer, i int) error {
	body, dueMs := strconv.Itoa(i), int64(0)
	message := &rmq.Message{Topic: j.topic, Body: []byte(body)}
	if j.kind == "delay" {
		dueMs = time.Now().UnixMilli() + 2000 + int64(i)*7919%3000
		message.SetDelayTimestamp(time.UnixMilli(dueMs))
	} else if strings.HasSuffix(j.kind, "fifo") {
		message.SetMessageGroup(fmt.Sprintf("group-%d", i%7))
	}
	if j.kind != "transaction" {
		if _, err := producer.Send(context.Background(), message); err != nil {
			return err
		}
	} else {
		transaction := producer.BeginTransaction()
		if _, err := producer.SendWithTransaction(context.Background(), message, transaction); err != nil {
			return err
		}
		if i%10 == 0 {
			j.say("rolledback", body, 0, 0)
			return transaction.RollBack()
		}
		if err := transaction.Commit(); err != nil {
			return err
		}
	}
	j.say("sent", body, dueMs, 0)
	return nil
}

func (j *job) receive() error {
	consumer, err := started(j.newConsumer)
	if err != nil {
		return err
	}
	most := int32(32)
	if j.kind == "deadfifo" {
		most = 1 // behind one that fails, nothing of its group may be here already
	}
	for idle := 0; (idle < 2 || j.awaitsDead()) && time.Now().Before(until); {
		if idle++; j.done < j.wanted() {
			idle = 0
		}
		views, err := consumer.Receive(context.Background(), most, 20*time.Second)
		if err != nil && j.done == 0 && strings.Contains(err.Error(), "settings") {
			time.Sleep(500 * time.Millisecond) // the proxy does not have the client's settings yet
			continue
		}
		if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") {
			return err
		}
		for _, view := range views {
			attempt := int(view.GetDeliveryAttempt())
			body := string(view.GetBody())
			j.say("got", body, time.Now().UnixMilli(), attempt)
			if j.fails(body) || j.kind == "again" && attempt == 1 {
				if err := consumer.ChangeInvisibleDuration(view, 500*time.Millisecond); err != nil {
					return err
				}
				j.say("changed", body, time.Now().UnixMilli(), 500)
			} else if err := consumer.Ack(context.Background(), view); err != nil {
				return err
			}
			if j.kind != "again" || attempt > 1 {
				j.done++
			}
		}
	}
	return nil
}

func main() {
	seconds, _ := strconv.Atoi(os.Args[2])
	until = time.Now().Add(time.Duration(seconds) * time.Second)
	var group sync.WaitGroup
	for _, name := range os.Args[4:] {
		parts := strings.Split(name, "/")
		count, _ := strconv.Atoi(parts[2])
		one := &job{name: name, kind: parts[0], topic: parts[3], group: parts[4], count: count}
		group.Add(1)
		go func() {
			defer group.Done()
			if err := one.run(); err != nil {
				fmt.Fprintln(os.Stderr, "failed:", one.name, err)
				one.say("failed", "error", 0, 0)
			}
		}()
	}
	group.Wait()
}
