# frozen_string_literal: true

module EventMachine
  module Protocols
    # Takes a response of HTTP/1 apart, in pieces of any size.
    class HttpResponse
      # The peer does not speak HTTP.
      class Malformed < StandardError; end

      LONGEST_HEADER = 256 * 1024
      private_constant :LONGEST_HEADER

      attr_reader :status, :header_lines, :headers, :content

      def initialize
        @input = String.new(encoding: Encoding::BINARY)
        @content = String.new(encoding: Encoding::BINARY)
        @header_lines = []
        @headers = {}
        @state = :status
        @expects_content = true
      end

      # The response to HEAD has no content, whatever its headers say.
      def without_content
        @expects_content = false
      end

      def complete?
        @state == :complete
      end

      # Takes data. What follows the response stays, for the next one.
      def <<(data)
        @input << data
        nil while !complete? && step
        self
      end

      # The connection has ended: so has a response without a length, and one that lacks only the line after its last chunk.
      def finish
        @state = :complete if %i[until_close trailers].include?(@state)
      end

      # What was received after the response.
      def rest
        @input
      end

      private

      def step
        case @state
        when :status, :headers, :chunk_size, :trailers then (line = take_line) && send(:"take_#{@state}", line)
        when :content then take_content
        when :chunk then take_chunk
        when :until_close then take_rest
        end
      end

      def take_line
        at = @input.index("\n")
        raise Malformed, 'header too long' if (at || @input.bytesize) > LONGEST_HEADER

        at && @input.slice!(0, at + 1).chomp
      end

      def take_status(line)
        return true if line.empty?

        match = line.match(%r{\AHTTP/\d\.\d (\d{3})}) or raise Malformed, "not a status line: #{line[0, 80].inspect}"
        @status = match[1].to_i
        @header_lines << line
        @state = :headers
      end

      def take_headers(line)
        return begin_content if line.empty?

        @header_lines << line
        name, value = line.split(':', 2)
        (@headers[name.downcase.strip] ||= []) << value.strip if value
        true
      end

      def begin_content
        # An interim response is followed by the real one.
        return reset_for_final_response if @status.between?(100, 199)

        length = @headers['content-length']&.last
        @state =
          if !@expects_content || [204, 304].include?(@status) then :complete
          elsif @headers['transfer-encoding']&.last.to_s.downcase.end_with?('chunked') then :chunk_size
          elsif length then length_of(length).zero? ? :complete : :content
          else :until_close
          end
      end

      def reset_for_final_response
        @header_lines.clear
        @headers.clear
        @state = :status
      end

      def length_of(text)
        raise Malformed, "not a length: #{text.inspect}" unless text.match?(/\A\d+\z/)

        @left = text.to_i
      end

      def take_content
        return false if @input.empty?

        part = @input.slice!(0, @left)
        @content << part
        @left -= part.bytesize
        @state = :complete if @left.zero?
        true
      end

      def take_chunk_size(line)
        # The end of the chunk before.
        return true if line.empty?

        digits = line[/\A\h+/] or raise Malformed, "not the length of a chunk: #{line[0, 80].inspect}"
        @left = digits.hex
        @state = @left.zero? ? :trailers : :chunk
      end

      def take_chunk
        return false if @input.empty?

        part = @input.slice!(0, @left)
        @content << part
        @left -= part.bytesize
        @state = :chunk_size if @left.zero?
        true
      end

      def take_trailers(line)
        @state = :complete if line.empty?
        true
      end

      def take_rest
        return false if @input.empty?

        @content << @input
        @input.clear
      end
    end
  end
end
