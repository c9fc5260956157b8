# frozen_string_literal: true

require 'em/protocols/http_response'

module EventMachine
  module Protocols
    warn 'EventMachine::Protocols::HttpClient2 is old; use em-http-request in new programs' if $VERBOSE

    # Requests over one connection, one after the other.
    class HttpClient2 < Connection
      # One request: a deferrable that succeeds and fails with itself.
      class Request
        include Deferrable

        attr_reader :status, :headers, :header_lines, :content, :internal_error, :version

        def initialize(connection, args)
          @connection = connection
          @args = args
          @response = HttpResponse.new
        end

        def send_request
          lines = ["#{@args[:verb].to_s.upcase} #{@args[:uri]} HTTP/#{@args[:version] || '1.1'}",
                   "Host: #{@args[:host_header] || @connection.host_header}"]
          lines << "Authorization: #{@args[:authorization]}" if @args[:authorization]
          lines << "Cookie: #{@args[:cookie]}" if @args[:cookie]
          content = @args[:content].to_s
          lines << "Content-length: #{content.bytesize}" unless content.empty?
          @response.without_content if @args[:verb].to_s.casecmp('head').zero?
          raise ArgumentError, 'a request must not contain line breaks in its headers' if lines.any? { |line| line.match?(/[\r\n]/) }

          @connection.send_data("#{lines.join("\r\n")}\r\n\r\n#{content}")
        end

        # Takes data. Returns what belongs to the next response, or nil if this one is not complete.
        def receive(data)
          @response << data
          return unless @response.complete?

          settle
          @response.rest
        rescue HttpResponse::Malformed => e
          fail_with(e.message)
          nil
        end

        def connection_ended(reason)
          @response.finish
          @response.complete? ? settle : fail_with(reason)
        end

        private

        def settle
          @status = @response.status
          @headers = @response.headers
          @header_lines = @response.header_lines
          @content = @response.content
          set_deferred_status(:succeeded, self)
        end

        def fail_with(reason)
          @internal_error = reason
          set_deferred_status(:failed, self)
        end
      end

      attr_reader :host_header

      # Takes a host and a port, or a hash with `host`, `port` and `tls`.
      def self.connect(*args)
        options = args.first.is_a?(Hash) ? args.first : { host: args[0], port: args[1], tls: args[2] }
        options = options.dup
        options[:port] = Integer(options[:port] || (options[:tls] ? 443 : 80))
        EventMachine.connect(options[:host], options[:port], self, options)
      end

      def initialize(options)
        super()
        @options = options
        default = options[:port] == (options[:tls] ? 443 : 80)
        @host_header = default ? options[:host].to_s : "#{options[:host]}:#{options[:port]}"
        @requests = []
        @ready = false
        @ended = nil
      end

      def get(args)
        args = { uri: args } if args.is_a?(String)
        request(args.merge(verb: 'get'))
      end

      def post(args)
        args = { uri: args } if args.is_a?(String)
        request(args.merge(verb: 'post'))
      end

      # Options: uri or url, verb, authorization, cookie, content, version, host_header.
      def request(args)
        args = args.dup
        args[:uri] = (args[:uri] || args[:url] || '/').to_s
        args[:uri] = "/#{args[:uri]}" unless args[:uri].start_with?('/')
        request = Request.new(self, args)
        if @ended
          EventMachine.next_tick { request.connection_ended(@ended) }
        else
          @requests << request
          request.send_request if @ready && @requests.size == 1
        end
        request
      end

      def connection_completed
        @options[:tls] ? start_tls : begin_requests
      end

      def ssl_handshake_completed
        begin_requests
      end

      def receive_data(data)
        until data.nil? || data.empty? || @requests.empty?
          data = @requests.first.receive(data)
          next unless data

          @requests.shift
          @requests.first&.send_request
        end
      end

      def unbind(reason = nil)
        @ended = @ready ? "the connection has ended#{": #{reason}" if reason}" : "no connection#{": #{reason}" if reason}"
        requests = @requests
        @requests = []
        requests.each { |request| request.connection_ended(@ended) }
      end

      private

      def begin_requests
        @ready = true
        @requests.first&.send_request
      end
    end
  end
end
